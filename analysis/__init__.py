"""What is shown: tables, figures, the claims ledger, the report page and README's tables, all from
files in `results/`.
"""
