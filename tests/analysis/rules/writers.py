"""Result files that speak for a claim, or against it: writers that tests of rules put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import tables
from analysis.answers import FOUR
from analysis.models import TYPES
from analysis.paper import claims
from analysis.results import Results
from analysis.rules import Verdict
from analysis.rules.stability import CONVERGED
from tests.analysis.answer_files import (
    write_answers,
    write_chat,
    write_lora,
    write_ruler,
    write_scores,
)
from tests.analysis.group_files import (
    DEFAULT,
    JOINT,
    write_ablation,
    write_affinity,
    write_contents,
    write_cure,
    write_groups,
    write_induction,
)
from tests.analysis.result_files import (
    FULL,
    LORA,
    PAPER,
    RECIPE,
    ROUTERS,
    gpu_report,
    gpu_steps,
    write_adapted,
    write_copying,
    write_leak,
    write_lengths,
    write_masks,
    write_paper,
    write_pretrained,
    write_read,
    write_table,
)
from tests.analysis.result_files import losses as rows_of
from tests.analysis.small_files import write_ladder, write_tuned, write_types

(REPRODUCED, DIRECTION, NOT_REPRODUCED, CONTRADICTS, ARITHMETIC, INCONCLUSIVE, NOT_RUN) = Verdict
CLAIMS = {claim.id: claim for claim in claims()}
GPT2 = {"model": "gpt2", "texts": "pg-19", "context": 1024}
TRAINED = ROUTERS | {"steps": 4000}
LONG = JOINT | {"steps": 4000}
H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
MILLION = {"length": 2**20}
SLOW = {"speedup": 0.9, "speedup_low": 0.8, "speedup_high": 0.95}
Writer = Callable[[Results], None]


def paper(changes: dict[int, float], rows: Any = None, with_sinks: float | None = None,
          **how: Any) -> Writer:  # fmt: skip
    """The paper's setup beside the pretrained model, and one with sinks."""

    def write(results: Results) -> None:
        place = {name: how[name] for name in ("model", "texts", "context") if name in how}
        write_pretrained(results.root, **place)
        write_paper(results.root, changes, rows=rows, **how)
        if with_sinks is not None:
            method = PAPER | {"sinks": 4, "gate": "log", "routers": "layer"}
            sinks = {k: with_sinks if k < 3 else 0.0 for k in changes}
            write_paper(results.root, sinks, block="paper_sinks", rows=rows,
                        method=method, **place)  # fmt: skip

    return write


def dense(change: float, kept: float = 1.0) -> Writer:
    """Masks with k = 3 and 4 of four groups."""
    rows = {"density": kept, "distant_density": kept, "wobble": 0.0}
    return paper({3: change, 4: change}, rows)


def soft(hard: float, gate: float = 0.0, regime: dict[str, Any] = ROUTERS,
         before: Callable[[Path], None] = write_pretrained) -> Writer:  # fmt: skip
    """The paper's setup under its training gate and under the mask of two groups."""

    def write(results: Results) -> None:
        before(results.root)
        write_paper(results.root, {2: hard}, regime=regime)
        write_read(results.root, "paper", rows_of("soft", change=gate), method=PAPER, regime=regime,
                   against=["pretrained"])  # fmt: skip

    return write


def family(ours: float, adapted: float = -0.1, control: float | None = None, wobble: float = 1e-4,
           apart: float = 0.0, place: str = "") -> Writer:  # fmt: skip
    """The recipe beside both full models, and a window of as many pairs."""
    how = {"reading": "plays", "texts": "plays"} if place else {}
    bases = [f"{place}adapted", f"{place}pretrained"]

    def write(results: Results) -> None:
        write_pretrained(results.root, block=bases[1], **how)
        write_adapted(results.root, adapted, block=bases[0], **how)
        rows = {"seeds": (0, 1, 2), "apart": apart, "wobble": wobble}
        budgets = dict.fromkeys((0.0625, 0.125, 0.25), ours)
        write_masks(results.root, f"{place}recipe", budgets, regime=ROUTERS, rows=rows,
                    against=bases, **how)  # fmt: skip
        if control is not None:
            write_masks(results.root, "window", dict.fromkeys(budgets, control),
                        method={"name": "window"}, against=bases)  # fmt: skip

    return write


def fresh(recipe: float, calibrated: float = -0.1) -> Writer:
    """The recipe and its calibration where all was fixed, beside full attention."""
    how = {"reading": "fresh", "texts": "essays"}

    def write(results: Results) -> None:
        write_adapted(results.root, 0.0, block="fresh_adapted", **how)
        for name, change in (("fresh_recipe", recipe), ("fresh_allocated", calibrated)):
            write_masks(results.root, name, {0.125: change}, regime=ROUTERS,
                        against=["fresh_adapted"], rows={"seeds": (0, 1)}, **how)  # fmt: skip

    return write


def heavy(change: float, beside: float = 0.0, kept: float = 0.125) -> Writer:
    """The recipe beside heavy hitters, the recipe alone, and both full models."""

    def write(results: Results) -> None:
        family(beside)(results)
        against = ["adapted", "pretrained", "recipe"]
        write_masks(results.root, "heavy_untrained", {0.125: change}, regime=ROUTERS,
                    against=against, method=RECIPE | {"heavy_hitters": 0.02},
                    rows={"seeds": (0, 1), "distant_density": kept})  # fmt: skip

    return write


def allocated(change: float, beside: float) -> Writer:
    """Groups shared out among heads, and as many for all, both beside heavy hitters."""

    def write(results: Results) -> None:
        heavy(beside)(results)
        method = RECIPE | {"heavy_hitters": 0.02, "allocated": True}
        for name in ("allocated", "longer_allocated"):
            write_masks(results.root, name, {0.125: change}, regime=ROUTERS, method=method,
                        against=["adapted", "pretrained", "heavy_untrained"],
                        rows={"seeds": (0, 1)})  # fmt: skip

    return write


def asked(found: float, **how: Any) -> Writer:
    """Long-context tasks beside heavy hitters."""
    return lambda results: write_ruler(results.root, 0.1, found=found,
                                       method=RECIPE | {"heavy_hitters": 0.02}, **how)  # fmt: skip


def beside_window(found: float, kept: float = 0.1) -> Writer:
    """Long-context tasks under a window, and under the recipe, which finds half of the answers with
    a tenth of the distant pairs."""

    def write(results: Results) -> None:
        write_ruler(results.root, 0.1, found=0.5)
        against = ["ruler_adapted", "ruler_recipe"]
        write_ruler(results.root, 0.2, found=found, block="ruler_window", against=against,
                    method={"name": "window"}, kept=kept)  # fmt: skip

    return write


def talked(lora: float, mask: float) -> Writer:
    """Answers of LoRA and under the paper's mask."""
    return lambda results: write_chat(results.root, lora, mask)


def talked_later(lora: float, mask: float) -> Writer:
    """The same after the paper's steps."""
    blocks = "lora4_steps", "truthful_paper"
    return lambda results: write_chat(results.root, lora, mask, costs=False, steps=2000,
                                      blocks=blocks)  # fmt: skip


def ablated(change: float, largest: float, regime: Any = ROUTERS, wobble: float = 1e-4,
            **fields: Any) -> Writer:  # fmt: skip
    """A setting beside the default, whose perplexity is the pretrained model's and whose largest
    group has 24% of the tokens."""

    def write(results: Results) -> None:
        write_pretrained(results.root)
        default = "ablate" if regime["name"] == "centroids" else "tuned"
        write_ablation(results.root, default, 0.0, 24.0, regime=regime, wobble=wobble)
        write_ablation(results.root, f"{default}_other", change, largest, against=[default],
                       regime=regime, wobble=wobble, **fields)  # fmt: skip

    return write


def at_two_rates(largest: float, regime: Any, **fields: Any) -> Writer:
    """A setting beside the default, both of which go by no learning rate."""

    def again(results: Results) -> None:
        faster: Any = regime | {"learning_rate": 0.01}
        write_ablation(results.root, "faster", 0.0, 24.0, regime=faster)
        write_ablation(results.root, "faster_other", 0.0, largest, regime=faster, **fields)

    return both(ablated(0.0, largest, regime, **fields), again)


def cures(*known: tuple[str, float, dict[str, Any]]) -> Writer:
    """Joint trainings beside a plain softmax."""

    def write(results: Results) -> None:
        for mitigation, largest, how in (("none", 40.0, {}), *known):
            write_cure(results.root, mitigation, largest, **how)

    return write


LATE: Any = {"steps": 4000, "base": "steady"}


def settled(few: float, many: float) -> Writer:
    """Percent in the largest group as trained, and after a thousand iterations."""

    def write(results: Results) -> None:
        write_ablation(results.root, "steady", 0.0, few, regime=LONG)
        method = DEFAULT | {"sinkhorn_iterations": 1000}
        write_groups(results.root, "steady_converged", many, cell=CONVERGED, method=method)

    return write


def beside_lora(lora: float, gate: float) -> Writer:
    """LoRA, and the paper's routers under their training gate, of the same model."""
    return soft(0.1, gate, before=lambda root: write_lora(root, lora))


def lora(change: float, **how: Any) -> Writer:
    return lambda results: write_lora(results.root, change, **how)


def both_lengths(few: float, all_steps: float) -> Writer:
    """LoRA of rank 16 after 24 steps, and after the paper's."""

    def write(results: Results) -> None:
        lora(few, block="lora16")(results)
        known = {"regime": LORA | {"learning_rate": 0.0005, "rank": 16, "steps": 2000},
                 "method": FULL, "against": ["pretrained"]}  # fmt: skip
        for reading, final in (("final", True), ("search", False)):
            write_read(results.root, "lora16_steps", rows_of("full", change=all_steps),
                       reading=reading, final=final, **known)  # fmt: skip

    return write


def lora_asked(missed: int, before: int = 0) -> Writer:
    """LoRA that changes no answer of 100, and 400 questions that another cell asks it; ``before``:
    of which the model before has as many wrong."""

    def write(results: Results) -> None:
        lora(0.2, rate=1e-4, **THEIR_STEPS)(results)
        known = {"reading": "more", "method": FULL}
        write_scores(results.root, "lora4_asked", missed, 400, start="lora4_steps",
                     against=["answers_pretrained"], **known)  # fmt: skip
        write_scores(results.root, "answers_pretrained", before, 400, **known)

    return write


def holds(pure: float, **how: Any) -> Writer:
    return lambda results: write_contents(results.root, pure, **how)


def persisting(tuned: float, **how: Any) -> Writer:
    """Groups trained alone that hold 90% of their part of speech, and others with all weights."""
    return lambda results: (
        write_contents(results.root, 0.9),
        write_contents(results.root, tuned, block="held_tuned", **how),
    )


def costly_pair(results: Results) -> None:
    """Two groups that cost more than eight."""
    write_ablation(results.root, "ablate", 0.0, 24.0, regime=TRAINED)
    two = {"num_groups": 2, "window": 16}
    write_ablation(results.root, "two_groups", 0.1, 50.0, regime=TRAINED, **two)


def pairs(change: float, window: int, regime: Any = ROUTERS) -> Writer:
    """Two groups under a window of 16 that cost 10% less than eight, and under another window."""

    def write(results: Results) -> None:
        write_ablation(results.root, "ablate", 0.0, 24.0, regime=regime)
        two = {"regime": regime, "num_groups": 2}
        write_ablation(results.root, "two_groups", -0.1, 50.0, window=16, **two)
        write_read(results.root, "two_groups_window", rows_of("soft", change=change),
                   cell=f"two_groups_window-window{window}", regime=regime)  # fmt: skip

    return write


def sure(largest: float) -> Writer:
    """The default of the ablations, whose tokens are 90% sure."""
    return lambda results: write_ablation(results.root, "ablate", 0.0, largest, regime=TRAINED)


def unsure(results: Results) -> None:
    sure(20.0)(results)
    path = results.root / "ablate" / "read" / "groups" / "rows.csv"
    frame = pd.read_csv(path, dtype={"sha": str})
    frame.assign(confidence=0.3).to_csv(path, index=False)


def copied(again: float) -> Writer:
    def write(results: Results) -> None:
        write_copying(results.root, "recipe", again, budget=0.125, method=RECIPE, regime=ROUTERS,
                      against=["adapted"])  # fmt: skip

    return write


def left_out(found: float, dearer: float) -> Writer:
    return lambda results: write_induction(results.root, found, dearer, method=RECIPE,
                                           regime=ROUTERS, against=["adapted"])  # fmt: skip


def linked(**shared: float) -> Writer:
    return lambda results: write_affinity(results.root, shared, method=RECIPE, regime=ROUTERS,
                                          against=["adapted"])  # fmt: skip


def paper_linked(**shared: float) -> Writer:
    return lambda results: write_affinity(results.root, shared, method=PAPER, regime=ROUTERS)


def leaks(sinkhorn: float, causal: float) -> Writer:
    return lambda results: write_leak(results.root, sinkhorn, causal)


def table(stage: str, *rows: dict[str, Any]) -> Writer:
    return lambda results: write_table(results.root, stage, *rows)


def masked(time: float) -> Writer:
    """The time of attention under two of four groups, as a share of full attention's."""
    return table("masks", {"method": "full", "time": 1.0},
                 {"K": 4, "k": 2, "time": time, "time_low": time - 0.01,
                  "time_high": time + 0.01})  # fmt: skip


def gpu(device: str, *rows: dict[str, Any]) -> Writer:
    return lambda results: gpu_report(results.base, device, *rows)


def steps_on_gpu(step: str, *rows: dict[str, Any], full: Sequence[dict[str, Any]] = ()) -> Writer:
    return lambda results: gpu_steps(results.base, H100, step, *rows, full=full)


def seconds(taken: float, **row: Any) -> dict[str, Any]:
    """A timing of attention at a length where ours is claimed to be faster."""
    return {"length": 65536, "kernel": "cudnn_attention", "median_s": taken, "low_s": taken,
            "high_s": taken, **row}  # fmt: skip


def on_gpu(length: int, speedup: float) -> dict[str, Any]:
    known = {"speedup": speedup, "low": speedup - 0.05, "high": speedup + 0.05}
    return {"length": length, "recipe": known}


def counts(name: str, change: dict[str, Any] | None = None) -> Writer:
    """A table that is always written, with other figures in it."""

    def write(results: Results) -> None:
        tables.write(results, results.base / "tables")
        path = results.base / "tables" / f"{name}.csv"
        pd.read_csv(path).assign(**(change or {})).to_csv(path, index=False)

    return write


def lengths(*speeds: float) -> list[dict[str, Any]]:
    return [{"length": t, "speedup": s} for t, s in zip((1024, 16384, 65536), speeds, strict=False)]


def both(*writers: Writer) -> Writer:
    def write(results: Results) -> None:
        for each in writers:
            each(results)

    return write


def rivals(*, kept: float = 0.2, **changes: float) -> Writer:
    """The recipe, at the pretrained model's own perplexity, and rivals read beside it, which keep
    that share of all pairs."""
    how = {"reading": "rivals"}
    bases = ["adapted", "pretrained"]

    def write(results: Results) -> None:
        write_pretrained(results.root, **how)
        write_adapted(results.root, -0.04, **how)
        write_masks(results.root, "recipe", {0.125: 0.0}, regime=ROUTERS, against=bases, **how)
        for name, change in changes.items():
            budget = "own" if name == "performer" else 0.125
            write_masks(results.root, name, {budget: change}, against=[*bases, "recipe"],
                        method={"name": name.removesuffix("_plain")}, rows={"density": kept},
                        **how)  # fmt: skip

    return write


def answers(changed: int, exposure: float, **how: Any) -> Writer:
    return lambda results: write_answers(results.root, changed=changed, exposure=exposure, **how)


def many_shot(changed: int) -> Writer:
    """The paper's four benchmarks after worked examples."""

    def write(results: Results) -> None:
        for task in FOUR:
            write_answers(results.root, changed=changed, exposure=0.5, task=task, shots=10)

    return write


def rivals_answers(changed: int, name: str, exposure: float = 0.1,
                   questions: int = 200) -> Writer:  # fmt: skip
    keys = {"keys": 32, "window": 8, "sinks": 0} if name.endswith("_keys") else {}
    return answers(changed, exposure, task="lambada_openai", block=f"answers_{name}",
                   method={"name": name, **keys}, questions=questions)  # fmt: skip


def summed(changed: int, right: float = 1.0, steps: int = 24) -> Writer:
    """Sums under the paper's mask."""
    return answers(changed, 0.5, task="gsm8k", block="sums_paper", full="sums", right=right,
                   steps=steps)  # fmt: skip


def again(change: float) -> Writer:
    """LoRA under the mask beside LoRA twice."""

    def write(results: Results) -> None:
        write_adapted(results.root, block="adapted_again", change=-0.1)
        write_masks(results.root, "masked_lora", {0.125: change}, regime=LORA,
                    against=["adapted_again"])  # fmt: skip

    return write


def types(soft: float, hard: float, regime: Any = ROUTERS, models: Any = None,
          **how: Any) -> Writer:  # fmt: skip
    """The paper's setup on a small model of every attention type, or on other models."""
    every = models or list(TYPES.values())
    return lambda results: write_types(results.root, soft, hard, models=every, regime=regime,
                                       **how)  # fmt: skip


def tuned(change: float, **how: Any) -> Writer:
    return lambda results: write_tuned(results.root, change, **how)


ALL = {"name": "full", "steps": 4000}
THEIR_STEPS = {"steps": 2000, "block": "lora4_steps"}  # of Table 4
THEIR_GPT2 = {"models": ["small-llama", "gpt2"], "texts": "pg19", "context": 1024}


def longer(change: float, **how: Any) -> Writer:
    return lambda results: write_lengths(results.root, change, **how)


def printed(ppl: float, cell: str, model: str, **how: Any) -> Writer:
    """A cell of a larger scale under full attention, with this perplexity."""
    known = {"texts": "pg19", "context": 1024, "reading": "pg19", **how}
    rows = rows_of("full", change=ppl / 20.0855 / 1.284 - 1)
    return lambda results: write_read(results.root, cell.split("-")[0], rows, cell=cell,
                                      model=model, **known)  # fmt: skip


GROWING = (0.02, 0.0305, 0.0355, 0.04)  # nearly a straight line in the logarithm of the size
SHRINKING = (0.04, 0.0295, 0.0245, 0.02)
DENSER = (0.031, 0.0352, 0.0381, 0.041)  # what they need for a small gap is


def rungs(costs: Sequence[float], ahead: float | None = None, **how: Any) -> Writer:
    return lambda results: write_ladder(results.root, costs, ahead, **how)


SCRATCH_NAMES = ("before", "scratch", "scratch_focus")
TOP2 = {"density": 0.45, "distant_density": 0.4}
IN_SETTING = {**GPT2, "regime": TRAINED}
ONE_HEAD = {
    "method": "full",
    "heads": 1,
    "median_s": 0.01,
    "low_s": 0.01,
    "high_s": 0.01,
    **MILLION,
}
FULL_MILLION = {"method": "full", "median_s": 20.0, "low_s": 19.0, "high_s": 21.0, **MILLION}
SORTING = {"length": 2**20, "heads": 12, "head_dim": 64, "other_s": 0.1, "other_low_s": 0.1,
           "other_high_s": 0.1}  # fmt: skip
