"""Stage controls (audit point 9): does routing beat groups that learnt nothing, at equal density?

`python -m experiments.stages.controls` scores, on the same held-out books, the trained routers of
one variant, random routers, groups by position and by token identity, and the window alone, widened
until it keeps as many pairs. Differences from the trained routers are paired over documents.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

import focus
from experiments import evaluation, models, settings
from experiments.controls import controlled, equal_window
from experiments.data import WindowSequence, load_split
from experiments.evaluation import DocumentScore, Interval
from experiments.record import Run
from experiments.settings import Settings
from focus.density import PairCounts

ROUTED = "routed"


def main() -> None:
    """Command line of the stage."""
    chosen = settings.load()
    torch.set_num_threads(chosen.threads)
    with Run("controls", None, chosen) as run:
        controls(run, chosen)


def controls(run: Run, chosen: Settings) -> None:
    """Scores routed and control masks for every k of ``controls.top_ks``."""
    chosen.variant(chosen.controls.variant)
    model, _ = models.load(chosen.model.name, chosen.model.dtype)
    focus.load_adapter(model, Path("results/retrofit") / chosen.controls.variant / "adapter")
    documents = evaluation.protocol_windows(chosen.protocol)
    train = WindowSequence(
        load_split("train"), chosen.protocol.context, chosen.controls.calibration, chosen.seed
    )
    calibration = [train[i]["input_ids"].unsqueeze(0) for i in range(len(train))]
    kinds = [ROUTED, *chosen.controls.kinds]
    rows: list[dict[str, Any]] = []
    with evaluation.progress() as bar:
        task = bar.add_task("controls", total=1 + len(kinds) * len(chosen.controls.top_ks))
        with focus.mode(model, "full"):
            baseline = evaluation.score_documents(model, documents, chosen.protocol.score_from)
        bar.advance(task)
        for kind in kinds:
            place = nullcontext() if kind == ROUTED else controlled(
                model, kind, calibration, chosen.seed
            )  # fmt: skip
            with place:
                for k in chosen.controls.top_ks:
                    bar.update(task, description=f"controls {kind} top-{k}")
                    rows.append(measure(model, kind, k, documents, chosen, rows))
                    bar.advance(task)
    record(run, chosen, rows, baseline)


def measure(model: PreTrainedModel, kind: str, top_k: int, documents: list[tuple[str, Tensor]],
            chosen: Settings, before: list[dict[str, Any]]) -> dict[str, Any]:  # fmt: skip
    """Scores and density of one mask; the window alone is widened to the routed density."""
    window = model.focus_state.config.window
    if kind == "window":
        wanted = next(r["density"] for r in before if (r["kind"], r["top_k"]) == (ROUTED, top_k))
        window = equal_window(chosen.protocol.context, model.focus_state.config.sinks, wanted)
    counts: list[PairCounts | None] = []
    with focus.mode(model, "hard", top_k=top_k, window=window):
        scores = evaluation.score_documents(
            model, documents, chosen.protocol.score_from,
            lambda: counts.extend(focus.pair_counts(model).values()),
        )  # fmt: skip
    pairs = PairCounts.total(counts)
    return {
        "kind": kind, "top_k": top_k, "window": window, "density": pairs.density,
        "distant_density": pairs.distant_density if pairs.distant else 1.0, "scores": scores,
    }  # fmt: skip


def record(run: Run, chosen: Settings, rows: list[dict[str, Any]],
           baseline: list[DocumentScore]) -> None:  # fmt: skip
    """Table and metrics: perplexity, change from pretrained, and change from routed at equal k."""
    routed = {row["top_k"]: row["scores"] for row in rows if row["kind"] == ROUTED}
    config, _ = chosen.variant(chosen.controls.variant)
    table = []
    for row in rows:
        scores = row.pop("scores")
        numbers = {
            "ppl": evaluation.perplexity_interval(scores, chosen.bootstrap, chosen.seed),
            "delta": _change(scores, baseline, chosen),
            "versus_routed": _change(scores, routed[row["top_k"]], chosen),
        }
        name = f"{row['kind']}.k{row['top_k']}"
        flat: dict[str, float] = {}
        for key, found in numbers.items():
            run.metric(f"{name}.{key}", found.value, found.low, found.high, n=len(scores))
            flat |= {key: found.value, f"{key}_low": found.low, f"{key}_high": found.high}
        run.metric(f"{name}.density", row["density"])
        table.append({
            "variant": chosen.controls.variant, "K": config.num_groups, **row, **flat,
            "n_documents": len(scores), "seed": chosen.seed,
        })  # fmt: skip
    run.table(pd.DataFrame(table), "table.csv")
    run.note("seed", chosen.seed)


def _change(scores: list[DocumentScore], base: list[DocumentScore], chosen: Settings) -> Interval:
    return evaluation.relative_change(scores, base, chosen.bootstrap, chosen.seed)


if __name__ == "__main__":
    main()
