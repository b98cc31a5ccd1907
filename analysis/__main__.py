"""`python -m analysis`: tables, figures, forecast, ledger, metrics, page from result files."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from analysis import claims, figures, ladder, pages, report, tables
from analysis.gaps import alone, mixed, unknown
from analysis.results import Results
from experiments import settings


def main(arguments: list[str] | None = None) -> None:
    """Write everything that is shown; what has no result file is left out, never made up."""
    parser = argparse.ArgumentParser(prog="python -m analysis", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"),
                        help="folder with the result files of every scale")  # fmt: skip
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--scale", help="instead of the one of params.yaml")
    parser.add_argument("--pages", type=Path, nargs="?", const=Path(),
                        help="also render README.md and docs/ of a folder")  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        chosen, out = settings.load(options.params, options.scale), options.results
    except ValueError as error:
        sys.exit(f"analysis: {error}")
    results = Results.of(chosen, out)
    written = tables.write(results, out / "tables")  # first: rules read what was counted there
    written += figures.write(results, out / "figures")
    written.append(ladder.write(results, out / "forecast.json"))
    rows = claims.build(results, chosen.tolerances)
    written += claims.write(rows, out)
    numbers = {"experiments": tables.metrics(results), "claims": claims.totals(rows)}
    path = out / "metrics.json"
    path.write_text(json.dumps(numbers, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    written += [path, report.write(results, rows, out / "report.html")]
    if options.pages:
        written += pages.write(options.pages, results, rows)
    for verdict, count in claims.totals(rows).items():
        print(f"{count:5d}  {verdict}")
    print(f"{len(written)} files, most below {out.resolve()}")
    for line in alone(results):
        print(f"alone: {line}")
    for line in mixed(results, chosen):
        print(f"mixed: {line}")
    for line in unknown(results):
        print(f"unknown: {line}")


if __name__ == "__main__":
    main()
