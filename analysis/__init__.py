"""What is shown: tables, figures, the claims ledger and the report page, all from files in
`results/`.
"""
