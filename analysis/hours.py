"""`python -m analysis.hours`: what the commands of rows that were not run take, by estimate.

It writes results/tables/hours.csv, a row a cell of a larger scale that such a row is about:
training with all that it starts from, and readings, by experiments/costs, on the scale's machine.
It takes minutes, so it is no part of `python -m analysis`; the ledger leaves hours out whose
settings are no longer those of params.yaml and scales/.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import plans
from experiments.settings import Experiment, Settings

TABLE = Path(__file__).parents[1] / "results/tables/hours.csv"


def known(own: Experiment, chosen: Settings) -> dict[str, Any] | None:
    """The row of a cell; None where there is none, or it is of other settings."""
    row = _table().get((chosen.scale, own.name))
    return row if row and row["settings"] == digits(own, chosen) else None


@cache
def _table() -> dict[tuple[str, str], dict[str, Any]]:
    if not TABLE.is_file():
        return {}
    rows = pd.read_csv(TABLE, dtype={"settings": str}).to_dict("records")
    return {(str(row["scale"]), str(row["cell"])): row for row in rows}  # type: ignore[misc]


def digits(own: Experiment, chosen: Settings) -> str:
    """12 digits of the sha256 of what a row is estimated from."""
    chain = [{name: each.plain()[name] for name in ("model", "dtype", "method", "regime")}
             for each in (own, *plans.above(own, chosen))]  # fmt: skip
    read = [chosen.readings[name].plain() for name in own.readings]
    masks = [own.plain()[name] for name in ("budgets", "seeds")]
    text = json.dumps([chain, read, masks], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def estimated(own: Experiment, chosen: Settings) -> dict[str, Any]:
    """A row: hours, devices, bytes of each."""
    from experiments.costs.estimate import estimate
    from experiments.costs.machines import usual
    from experiments.costs.reading import reading

    machine = usual(chosen.scale)
    trained = [each for each in (own, *plans.above(own, chosen)) if each.trains]
    costs = [estimate(each.model, chosen, each.name, machine) for each in trained]
    return {
        "scale": chosen.scale, "experiment": own.block, "cell": own.name, "model": own.model,
        "train_hours": len(own.seeds) * sum(each["hours"] for each in costs),
        "train_devices": max((each["devices"] for each in costs), default=0),
        "train_total": max((each["train_total"] for each in costs), default=0),
        "train_flops": len(own.seeds) * sum(each["run_flops"] for each in costs),
        **reading(own, chosen, machine), "device": machine.name, "gibibytes": machine.gibibytes,
        "tflops": machine.tflops, "share": machine.share, "settings": digits(own, chosen),
    }  # fmt: skip


def write(cells: list[tuple[Experiment, Settings]]) -> None:
    """The table of these cells; rows whose settings are the same are kept as they are."""
    rows = {}
    for (scale, name), (own, chosen) in {(c.scale, o.name): (o, c) for o, c in cells}.items():
        print(f"hours: {scale}, {name}", flush=True)
        rows[scale, name] = known(own, chosen) or estimated(own, chosen)
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([rows[each] for each in sorted(rows)]).to_csv(TABLE, index=False)


def main() -> None:
    """Of every row that was not run in the ledger of the results that are there."""
    from analysis import commands  # it tells hours, too
    from analysis.claims import build
    from analysis.paper import claims
    from analysis.results import Results
    from analysis.rules import Verdict
    from experiments import settings

    chosen = settings.load()
    rows = build(Results.of(chosen, Path("results")), chosen.tolerances)
    missing = {row["id"] for row in rows if row["verdict"] == Verdict.NOT_RUN}
    found = [(own, commands.chosen(where[0])) for claim in claims() if claim.id in missing
             if (own := commands.cell(claim)) and (where := commands.place(claim))]  # fmt: skip
    write(found)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
