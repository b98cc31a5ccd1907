"""Ablations of the paper's setup: one setting changed at a time, against its default; and what
becomes of groups while routers and weights learn together, by mitigation."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pandas as pd

from analysis import scope
from analysis.cells import WINDOW, Cell
from analysis.comparisons import compared, quality
from analysis.results import Results
from analysis.rows import columns, ends, only, row_of, tabled
from experiments import statistics
from experiments.methods.focus import FocusSettings

# The paper's name of a setting, and ours; a setting that the paper leaves alone has ours.
SETTINGS = {"k": "num_groups", "window": "window", "tau": "temperature",
            "sinkhorn-iterations": "sinkhorn_iterations", "routing_dim": "routing_dim"}  # fmt: skip
THEIRS = {ours: name for name, ours in SETTINGS.items()}
# The default of each column of Table 9: routers alone, and with all weights; and those of as many
# steps as the paper's, the second on a small model that hardly reads far: it tells of groups alone.
DEFAULTS = {"centroids": "ablate", "joint": "tuned"}
STEADY = {"centroids": "ablate_steps", "joint": "steady"}
LIBRARY = FocusSettings().model_dump()
# Our mitigations by the paper's name; the last three are not the paper's.
NAMES = {
    "softmax": "entropy-and-balance-loss", "stop_gradient": "stop-gradient-on-inputs",
    "ema": "ema-centroids-and-projection", "recluster": "recluster-every-100-steps",
    "softmax_x5": "balance-weight-x5", "sinkhorn": "sinkhorn",
    "causal": "causal potentials (ours)", "bias": "bias update (DeepSeek-V3)",
    "none": "plain softmax",
}  # fmt: skip
MEASURES = ("drift", "shift", "rank", "alive", "agreement", "confidence", "one_plus_cv2")
# What mitigations are compared with, in params.yaml: a few steps of a pretrained model, and the
# paper's steps of a small one.
WATCHED = ("stable", "stable_routers", "steady", "steady_routers")
BALANCED, BALANCED_NAME = "held_recipe", "balanced keys alone (our recipe)"


@tabled("trained", "setting", "value", "default", "base", "cell", "change", "low", "high", "ppl",
        "hard_change", "hard_low", "hard_high", "distant_density", *ends("largest", "points"),
        "documents", "seeds", "evidence", "groups_evidence")  # fmt: skip
def table(results: Results) -> Iterator[dict[str, Any]]:
    """A row a way to train, setting and value: change of the perplexity under the training gate and
    under the hard mask against the default (of the default: against the pretrained model), the
    share of distant pairs that the mask keeps, tokens in the largest group (percent) and the
    difference, in points, to the default's. A window's value is the paper's that it stands for."""
    for trained, name in (*DEFAULTS.items(), *STEADY.items()):
        if default := results.cells.get(name):
            yield from _of_default(results, trained, default)


def _of_default(results: Results, trained: str, default: Cell) -> Iterator[dict[str, Any]]:
    swept = [(changed(cell, default), cell) for cell in results.cells.values()]
    found = {field for field, _ in swept if field}
    fields = sorted(found, key=lambda field: [*THEIRS, *LIBRARY].index(field))
    for field in fields:
        for cell in (default, *(cell for own, cell in swept if own == field)):
            hard = perplexity(results, cell, default, "hard")
            yield {"trained": trained, "setting": THEIRS.get(field, field),
                   "value": stands_for(cell, default, field),
                   "default": stands_for(default, default, field),
                   "base": default.name, "cell": cell.name, **largest(results, cell, default),
                   **perplexity(results, cell, default),
                   **{f"hard_{name}": hard.get(name) for name in ("change", "low", "high")},
                   "distant_density": hard.get("distant_density")}  # fmt: skip


def stands_for(cell: Cell, default: Cell, field: str) -> Any:
    """A cell's value of a field; of a window the paper's that it stands for, in proportion."""
    value = whole(cell)[field]
    return WINDOW * value // whole(default)[field] if field == "window" else value


def whole(cell: Cell) -> dict[str, Any]:
    """Every field of a cell's routers, those that params.yaml leaves to the library among them."""
    own = {name: value for name, value in cell.method.items() if name in LIBRARY}
    return {**LIBRARY, **own}


def changed(cell: Cell, default: Cell) -> str | None:
    """The one setting of the method in which a cell differs from the default, None elsewhere."""
    own, base = ((each.model, each.texts, each.start, each.regime, each.method.get("name"))
                 for each in (cell, default))  # fmt: skip
    if own != base or default.block not in cell.against:
        return None
    one, other = whole(cell), whole(default)
    apart = [name for name in one if one[name] != other[name]]
    return apart[0] if len(apart) == 1 else None


@cache
def every_default(results: Results, trained: str) -> pd.DataFrame:
    """The default after as many steps as the paper's, with its window in proportion: a row a model
    and learning rate, with tokens in the largest group (percent)."""
    default = results.cells.get(STEADY[trained])
    alike = [
        cell for cell in results.cells.values()
        if default and cell.steps and changed(cell, default) is None
        and {**whole(cell), "window": None} == {**whole(default), "window": None}
        and way(cell) == trained and not scope.fewer_steps(None, results, cell.name)
    ]  # fmt: skip
    rows = [{"cell": cell.name, "model": cell.model, "rate": cell.regime["learning_rate"],
             **largest(results, cell, cell)} for cell in alike]  # fmt: skip
    return pd.DataFrame([row for row in rows if "largest" in row])


def again(results: Results, cell: Cell, default: Cell) -> list[dict[str, Any]]:
    """A setting beside its default at other rates, where both have as many steps as the paper's:
    tokens in the largest group, a row a rate, with the columns of :func:`table`."""
    bases = _other_rates(results, default)
    return [
        {"rate": rate, **row}
        for rate, other in _other_rates(results, cell).items()
        if rate in bases and "points" in (row := largest(results, other, bases[rate]))
    ]


def _other_rates(results: Results, cell: Cell) -> dict[float, Cell]:
    """The same training, of as many steps as the paper's, by other learning rates."""
    return {other.regime["learning_rate"]: other for other in results.cells.values()
            if other.steps and but_rate(other) == but_rate(cell)
            and other.regime.get("learning_rate") != cell.regime.get("learning_rate")
            and not scope.fewer_steps(None, results, other.name)}  # fmt: skip


def but_rate(cell: Cell) -> tuple[Any, ...]:
    """What makes a training, but for its learning rate."""
    regime = {**cell.regime, "learning_rate": None}
    return cell.model, cell.texts, cell.start, regime, whole(cell)


def way(cell: Cell) -> str:
    """What a cell trains: routers alone, or all weights with them."""
    return "joint" if cell.regime.get("name") == "joint" and cell.regime["weights"] else "centroids"


def perplexity(results: Results, cell: Cell, default: Cell,
               condition: str = "soft") -> dict[str, Any]:  # fmt: skip
    """Against the default, or the default against the pretrained model."""
    if cell.name == default.name:
        own = only(quality(results), cell=cell.name, base_role="pretrained")
    else:
        own = compared(results, cell, default)
    row = row_of(own, condition=condition)
    names = ["change", "low", "high", "ppl", "distant_density", "documents", "seeds", "evidence"]
    return {} if row is None else {name: row[name] for name in names}


def largest(results: Results, cell: Cell, default: Cell) -> dict[str, Any]:
    """Percent of the tokens in the largest group, the mean over layers, and the difference."""
    own, base = (shares(results, each) for each in (cell, default))
    if own.empty:
        return {}
    found = statistics.two_way(own.to_numpy(), results.confidence)
    evidence = results.rows_of(cell.name, "groups")["evidence"].iloc[0]
    row = {**columns(found, "largest", "largest_"), "documents": found.documents,
           "groups_evidence": evidence}  # fmt: skip
    both = own.index.intersection(base.index)  # seeds
    if cell.name != default.name and len(both) and own.columns.equals(base.columns):
        apart = statistics.two_way((own - base).loc[both].to_numpy(), results.confidence)
        row |= columns(apart, "points", "points_")
    return row


def shares(results: Results, cell: Cell) -> pd.DataFrame:
    """Percent of the tokens in the largest group: a row a seed, a column a document."""
    own = results.rows_of(cell.name, "groups")
    own = own.assign(share=100 * own["largest_group"].astype(float))
    return own.pivot_table("share", "seed", ["document", "sha"])


def watched(results: Results) -> list[Cell]:
    """Joint trainings that were watched for the groups' sake: those that mitigations are compared
    with, and those that differ from one of them in the balance alone."""
    return [each for each in results.cells.values() if each.regime.get("name") == "joint"
            and (each.block in WATCHED or any(alike(each, results.cells.get(name))
                 for name in WATCHED if name in each.against))]  # fmt: skip


def alike(cell: Cell, default: Cell | None) -> bool:
    """Whether routers are the default's but for their balance, or there is no default."""
    own, theirs = ({**each.method, "balance": None} for each in (cell, default or cell))
    return own == theirs


@tabled("cell", "experiment", "mitigation", "name", "weights", "groups", "steps", "layers", "seeds",
        "evidence", *ends(*MEASURES, "lost_rank", "largest"), "documents",
        "groups_evidence")  # fmt: skip
def mitigations(results: Results) -> Iterator[dict[str, Any]]:
    """A row a joint training: tokens in the largest group on test documents (percent), and at the
    last step, as means over layers with intervals over layers, how far centroids and hidden states
    moved, the dimensions that projected tokens fill (of those at first), groups that are alive, how
    uneven they are (1 + CV^2 of their sizes: 1 is even, K all tokens in one), and the share of
    tokens that keep their group from look to look, over the second half. The last row is the
    recipe's, whose training was not watched: all of it is of test documents."""
    found = [*(_mitigation(results, cell) for cell in watched(results)), _recipe(results)]
    yield from filter(None, found)


def _mitigation(results: Results, cell: Cell) -> dict[str, Any]:
    """One training, {} where it was not watched."""
    own = only(results.traces, cell=cell.name)
    if own.empty:
        return {}
    if restarted(own):
        own = own.assign(drift=float("nan"), shift=float("nan"))
    last = at_end(own)
    known = described(cell) | {
        "steps": int(own["step"].max()), "layers": len(last), "seeds": own["seed"].nunique(),
        "evidence": own["evidence"].iloc[0],
    }  # fmt: skip
    for name in (*MEASURES, "lost_rank"):
        if last[name].notna().all() and len(last) > 1:
            known |= columns(statistics.mean(last[name], results.confidence), name, f"{name}_")
    return known | largest(results, cell, cell)


def described(cell: Cell) -> dict[str, Any]:
    """What a joint training is."""
    mitigation = cell.regime["mitigation"]
    return {"cell": cell.name, "experiment": cell.block, "model": cell.model,
            "mitigation": mitigation, "name": NAMES.get(mitigation, mitigation),
            "weights": bool(cell.regime["weights"]),
            "groups": cell.method["num_groups"]}  # fmt: skip


def _recipe(results: Results) -> dict[str, Any]:
    """Our recipe, which balances keys alone, by a reading of its groups; {} without one."""
    cell, own = results.cells.get(BALANCED), results.rows_of(BALANCED, "groups")
    if cell is None or own.empty:
        return {}
    known: dict[str, Any] = {
        "cell": cell.name, "experiment": cell.block, "mitigation": "keys", "name": BALANCED_NAME,
        "weights": False, "groups": cell.method["num_groups"],
        "steps": scope.trained(results, cell), "layers": own["layer"].nunique(),
        "seeds": own["seed"].nunique(), "evidence": own["evidence"].iloc[0],
    }  # fmt: skip
    by_layer = own.groupby("layer")[["confidence", "one_plus_cv2"]].mean()
    for name in by_layer:
        known |= columns(statistics.mean(by_layer[name], results.confidence), name, f"{name}_")
    return known | largest(results, cell, cell)


def restarted(trace: pd.DataFrame) -> bool:
    """Whether movements were counted anew on the way, from another start than the first step."""
    later = trace[trace["step"] > trace["step"].min()]
    return bool((later.groupby(["seed", "step"])["drift"].max() == 0).any())


def at_end(trace: pd.DataFrame) -> pd.DataFrame:
    """A row a layer: what was noted at the last step, the dimensions lost since the first, and the
    agreement over the second half; at the last look the rate is next to zero, and all agrees."""
    first, last = (by_layer(trace, step) for step in (trace["step"].min(), trace["step"].max()))
    late = trace[trace["step"] > trace["step"].max() / 2].groupby("layer")["agreement"].mean()
    lost = (1 - last["rank"] / first["rank"]).clip(lower=0)
    return last.assign(agreement=late, lost_rank=lost)


def moved(results: Results, cell: str, other: str, measure: str) -> statistics.Interval:
    """A movement of one training as a share of another's, paired by layer."""
    own, theirs = (at_end(only(results.traces, cell=name))[measure].to_numpy()
                   for name in (cell, other))  # fmt: skip
    return statistics.ratio(own, theirs, results.confidence)


def by_layer(trace: pd.DataFrame, step: int) -> pd.DataFrame:
    """A row a layer: the mean over seeds at a step."""
    return only(trace, step=step).groupby("layer").mean(numeric_only=True)
