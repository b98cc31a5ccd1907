"""`python -m analysis`: tables, figures, ledger, aggregated metrics and the report page from
`results/`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from analysis import claims, figures, report, settings, tables
from analysis.results import Results, load_json


def aggregate(results: Results, rows: list[dict[str, Any]]) -> dict[str, float | int]:
    """All numbers of all stages in one flat mapping, for DVC; the ledger's totals beside them."""
    flat: dict[str, float | int] = {}
    for path in sorted(results.root.glob("**/metrics.json")):
        prefix = ".".join(path.parent.relative_to(results.root).parts)
        if not prefix or path.parent.name == "dvclive":  # our own file; a training log
            continue
        for key, value in load_json(path).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                flat[f"{prefix}.{key}"] = value
    for verdict, count in claims.totals(rows).items():
        flat[f"claims.{verdict.split(' (')[0].replace(' ', '_')}"] = count
    return flat


def main(arguments: list[str] | None = None) -> None:
    """Write everything that is shown; what has no result file is left out, never made up."""
    parser = argparse.ArgumentParser(prog="python -m analysis", description=__doc__)
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder with the result files"
    )
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    options = parser.parse_args(arguments)
    loaded = settings.load(options.params)
    results = Results(options.results, loaded.params["variants"])
    written = tables.write(results, options.results / "tables")
    written += figures.write(results, options.results / "figures")
    rows = claims.build(results, loaded)
    written += claims.write(rows, options.results)
    path = options.results / "metrics.json"
    path.write_text(
        json.dumps(aggregate(results, rows), indent=1, allow_nan=False) + "\n", encoding="utf-8"
    )
    written += [path, report.write(results, rows, options.results / "report.html")]
    for verdict, count in claims.totals(rows).items():
        print(f"{count:5d}  {verdict}")
    print(f"{len(written)} files below {options.results}")


if __name__ == "__main__":
    main()
