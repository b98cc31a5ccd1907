"""Every rule, from crafted result files, to a verdict in its favour and to the one against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import pytest

from analysis import rules, tables
from analysis.architectures import TYPES
from analysis.benchmarks import FOUR
from analysis.paper import claims
from analysis.results import Results
from analysis.rules import RULES, Verdict
from tests.analysis.result_files import (
    JOINT,
    LORA,
    PAPER,
    RECIPE,
    ROUTERS,
    gpu_report,
    write_ablation,
    write_adapted,
    write_answers,
    write_chat,
    write_contents,
    write_copying,
    write_cure,
    write_ladder,
    write_leak,
    write_lengths,
    write_lora,
    write_masks,
    write_paper,
    write_pretrained,
    write_read,
    write_ruler,
    write_table,
    write_tuned,
    write_types,
)
from tests.analysis.result_files import losses as rows_of

(REPRODUCED, DIRECTION, NOT_REPRODUCED, CONTRADICTS, ARITHMETIC, INCONCLUSIVE, NOT_RUN) = Verdict
CLAIMS = {claim.id: claim for claim in claims()}
GPT2 = {"model": "gpt2", "texts": "pg-19", "context": 1024}
TRAINED = ROUTERS | {"steps": 4000}
LONG = JOINT | {"steps": 4000}
H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
MILLION = {"length": 2**20}
Writer = Callable[[Results], None]


def paper(changes: dict[int, float], rows: Any = None, with_sinks: float | None = None,
          **how: Any) -> Writer:  # fmt: skip
    """The paper's way beside the pretrained model, and one with sinks."""

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


def soft(hard: float) -> Writer:
    def write(results: Results) -> None:
        write_pretrained(results.root)
        write_paper(results.root, {2: hard})
        write_read(results.root, "paper", rows_of("soft", change=0.0), method=PAPER, regime=ROUTERS,
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


def heavy(change: float, beside: float = 0.0) -> Writer:
    """The recipe beside heavy hitters, the recipe alone, and both full models."""

    def write(results: Results) -> None:
        family(beside)(results)
        against = ["adapted", "pretrained", "recipe"]
        write_masks(results.root, "heavy_untrained", {0.125: change}, regime=ROUTERS,
                    against=against, method=RECIPE | {"heavy_hitters": 0.02},
                    rows={"seeds": (0, 1)})  # fmt: skip

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


def asked(found: float) -> Writer:
    """Long-context tasks beside heavy hitters."""
    return lambda results: write_ruler(results.root, 0.1, found=found,
                                       method=RECIPE | {"heavy_hitters": 0.02})  # fmt: skip


def beside_window(found: float) -> Writer:
    """Long-context tasks under a window, and under the recipe, which finds half of the answers."""

    def write(results: Results) -> None:
        write_ruler(results.root, 0.1, found=0.5)
        against = ["ruler_adapted", "ruler_recipe"]
        write_ruler(results.root, 0.2, found=found, block="ruler_window", against=against,
                    method={"name": "window"})  # fmt: skip

    return write


def talked(lora: float, mask: float) -> Writer:
    """Answers of LoRA and under the paper's mask."""
    return lambda results: write_chat(results.root, lora, mask)


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


def cures(*known: tuple[str, float, dict[str, Any]]) -> Writer:
    """Joint trainings beside a plain softmax."""

    def write(results: Results) -> None:
        for mitigation, largest, how in (("none", 40.0, {}), *known):
            write_cure(results.root, mitigation, largest, **how)

    return write


def lora(change: float, **how: Any) -> Writer:
    return lambda results: write_lora(results.root, change, **how)


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


def leaks(sinkhorn: float, causal: float) -> Writer:
    return lambda results: write_leak(results.root, sinkhorn, causal)


def table(stage: str, *rows: dict[str, Any]) -> Writer:
    return lambda results: write_table(results.root, stage, *rows)


def gpu(device: str, *rows: dict[str, Any]) -> Writer:
    return lambda results: gpu_report(results.base, device, *rows)


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


def rivals(**changes: float) -> Writer:
    """The recipe, at the pretrained model's own perplexity, and rivals read beside it."""
    how = {"reading": "rivals"}
    bases = ["adapted", "pretrained"]

    def write(results: Results) -> None:
        write_pretrained(results.root, **how)
        write_adapted(results.root, -0.04, **how)
        write_masks(results.root, "recipe", {0.125: 0.0}, regime=ROUTERS, against=bases, **how)
        for name, change in changes.items():
            budget = "own" if name == "performer" else 0.125
            write_masks(results.root, name, {budget: change}, against=[*bases, "recipe"],
                        method={"name": name.removesuffix("_plain")}, **how)  # fmt: skip

    return write


def answers(changed: int, exposure: float, **how: Any) -> Writer:
    return lambda results: write_answers(results.root, changed=changed, exposure=exposure, **how)


def many_shot(changed: int) -> Writer:
    """The paper's four benchmarks after worked examples."""

    def write(results: Results) -> None:
        for task in FOUR:
            write_answers(results.root, changed=changed, exposure=0.5, task=task, shots=10)

    return write


def rivals_answers(changed: int, name: str, exposure: float = 0.1) -> Writer:
    return answers(changed, exposure, task="lambada_openai", block=f"answers_{name}",
                   method={"name": name})  # fmt: skip


def again(change: float) -> Writer:
    """LoRA under the mask beside LoRA twice."""

    def write(results: Results) -> None:
        write_adapted(results.root, block="adapted_again", change=-0.1)
        write_masks(results.root, "masked_lora", {0.125: change}, regime=LORA,
                    against=["adapted_again"])  # fmt: skip

    return write


def types(soft: float, hard: float, regime: Any = ROUTERS, models: Any = None,
          **how: Any) -> Writer:  # fmt: skip
    """The paper's way on a small model of every attention type, or on other models."""
    every = models or list(TYPES.values())
    return lambda results: write_types(results.root, soft, hard, models=every, regime=regime,
                                       **how)  # fmt: skip


def tuned(change: float, **how: Any) -> Writer:
    return lambda results: write_tuned(results.root, change, **how)


THEIR_GPT2 = {"models": ["small-llama", "gpt2"], "texts": "pg19", "context": 1024}


def longer(change: float, **how: Any) -> Writer:
    return lambda results: write_lengths(results.root, change, **how)


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
# Rule -> claim, files in its favour, verdict, files against it.
CASES: dict[str, list[tuple[str, Writer, str, Writer]]] = {
    "sparse_perplexity": [
        ("table7.gpt2-124m.k2.ppl", paper({2: 41.3 / 20.0855 / 1.284 - 1}, **IN_SETTING),
         REPRODUCED, paper({2: 0.5}, **IN_SETTING)),
        ("table7.gpt2-124m.k1.delta", paper({1: 1.2}, with_sinks=0.02, **GPT2), DIRECTION,
         paper({1: 0.02}, **GPT2)),
        ("table7.gpt2-124m.k2.delta", paper({2: -0.05}, **GPT2), DIRECTION,
         paper({2: 0.05}, **{**GPT2, "texts": "plays", "regime": TRAINED})),
    ],
    "one_group": [("ours.paper.k1", paper({1: 1.2}, with_sinks=0.02), DIRECTION, paper({1: 0.02}))],
    "two_groups": [
        ("ours.paper.k2", paper({2: 0.02}), DIRECTION, paper({2: 0.2}, with_sinks=0.01))
    ],
    "retained": [
        ("ours.paper.k2.pairs", paper({2: 0.1}, {"distant_density": 0.65}), DIRECTION,
         paper({2: 0.1}, {"distant_density": 0.3})),
        ("table7.gpt2-124m.k2.pairs_retained", paper({2: 0.1}, {"distant_density": 0.6}, **GPT2),
         DIRECTION, paper({2: 0.1}, {"distant_density": 0.95}, **GPT2)),
    ],
    "soft_against_hard": [("audit.6", soft(0.2), DIRECTION, soft(0.001))],
    "dense_rows": [
        ("table7.gpt2-124m.k3.pairs_retained", dense(0.0), ARITHMETIC, dense(0.001)),
        ("table7.gpt2-124m.k3.delta", dense(0.0), CONTRADICTS, dense(0.0, 0.99)),
        ("table7.gpt2-124m.k4.ppl", dense(0.0), CONTRADICTS, dense(0.01)),
        ("table7.mistral-7b.k3.speedup", dense(0.0), CONTRADICTS, dense(0.01)),
        ("table7.mistral-7b.k4.ppl", dense(0.0), ARITHMETIC, dense(0.01)),
    ],
    "top3_is_everything": [
        ("audit.1", dense(0.0), ARITHMETIC, dense(0.001)),
        ("long_context.t1024.ppl_topk3", dense(0.0), ARITHMETIC, dense(0.001)),
        ("long_context.t8192.ppl_topk3", dense(0.0), CONTRADICTS, dense(0.001)),
    ],
    "table7_speedup": [
        ("table7.gpt2-124m.k1.speedup", gpu(H200, {"K": 4, "heads": 12, "method": "ours",
                                                   "speedup": 3.8}),
         DIRECTION, gpu(H200, {"K": 4, "heads": 12, "method": "ours", "speedup": 2.0})),
    ],
    "top2_bound": [
        ("audit.2", paper({2: 0.1}, {"density": 0.8}), ARITHMETIC, paper({2: 0.1}, TOP2)),
        ("audit.2", paper({2: 0.1}, {"density": 0.8}), ARITHMETIC,
         both(paper({2: 0.1}, {"density": 0.8}), table("speed", {"K": 4, "k": 2, "speedup": 2.1}))),
    ],
    "counted": [
        ("table3.focus-r16.trained_params", counts("parameters"), ARITHMETIC,
         counts("parameters", {"ours": 5.0})),
        ("table1.focus.trained_params", counts("parameters"), CONTRADICTS,
         counts("parameters", {"also": None})),
    ],
    "spread": [("audit.7", counts("repeated"), CONTRADICTS, counts("repeated", {"paper": 3.0}))],
    "confound": [
        ("audit.12", counts("confound"), ARITHMETIC, counts("confound", {"against_adapted": 0.0}))
    ],
    "log_sum_exp": [
        ("decomposition.log-sum-exp.cosine", table("exactness", {}, {}), DIRECTION,
         table("exactness", {}, {"output_cosine": 0.99})),
    ],
    "subtraction": [
        ("decomposition.subtraction.cosine",
         table("exactness", {"method": "subtraction", "output_cosine": 0.8}), DIRECTION,
         table("exactness", {"method": "subtraction"})),
    ],
    "suffix_changes_the_past": [
        ("audit.5", leaks(0.08, 0.0), DIRECTION, leaks(0.0, 0.0)),
        ("audit.5", leaks(0.08, 0.0), DIRECTION, leaks(0.08, 0.02)),
    ],
    "routing_against_chance": [
        ("audit.9", family(0.0, control=-0.03), DIRECTION, family(0.0, control=0.05))
    ],
    "spread_of_seeds": [("audit.10", family(0.0, apart=0.01), DIRECTION, family(0.0, wobble=0.02))],
    "any_training": [
        ("audit.11", family(-0.02), DIRECTION, family(-0.02, adapted=0.0)),
        ("audit.11", family(-0.02), DIRECTION, family(-0.2)),
    ],
    "cost": [
        ("ours.headline.adapted.0.125", family(-0.1), REPRODUCED, family(0.0)),
        ("ours.headline.pretrained.0.0625", family(-0.02), REPRODUCED, family(0.02)),
        ("ours.plays.adapted.0.125", family(-0.1, place="plays_"), REPRODUCED,
         family(0.0, place="plays_")),
        ("ours.heavy.adapted.0.125", heavy(-0.1), REPRODUCED, heavy(0.0)),
        ("ours.heavy.recipe.0.125", heavy(-0.02), REPRODUCED, heavy(0.02)),
        ("ours.allocated.adapted.0.125", allocated(-0.1, 0.0), REPRODUCED, allocated(0.0, 0.0)),
        ("ours.allocated.heavy.0.125", allocated(-0.1, 0.0), REPRODUCED, allocated(0.0, -0.1)),
        ("ours.longer_allocated.adapted.0.125", allocated(-0.1, 0.0), REPRODUCED,
         allocated(0.0, 0.0)),
    ],
    "further": [("ours.chat.1024", talked(0.3, 0.1), REPRODUCED, talked(0.1, 0.3))],
    "beyond_control": [
        ("ours.ruler.window", beside_window(0.0), REPRODUCED, beside_window(1.0)),
    ],
    "answers_found": [("ours.ruler", asked(1.0), REPRODUCED, asked(0.0))],
    "grows": [("ours.ladder.grows", rungs(GROWING), REPRODUCED, rungs(SHRINKING))],
    "forecasts": [
        ("ours.ladder.135m.k1", rungs(GROWING, 0.065), REPRODUCED, rungs(GROWING, 0.4)),
        ("ours.ladder.135m.k2", rungs(GROWING, 0.065), REPRODUCED, rungs(GROWING, 0.4)),
        ("ours.ladder.135m.density", rungs(DENSER, 0.0655), REPRODUCED, rungs(DENSER, 0.8)),
    ],
    "found_again": [("ours.copying", copied(0.6), REPRODUCED, copied(2.0))],
    "whole_model": [
        ("ours.whole.forward", table("prefill", {}), REPRODUCED,
         table("prefill", {"speedup": 0.9, "speedup_low": 0.8, "speedup_high": 0.95})),
        ("ours.whole.generation", table("continuation", {}), REPRODUCED,
         table("continuation", {"speedup": 0.9, "speedup_low": 0.8, "speedup_high": 0.95})),
    ],
    "speedup": [
        ("table6.t16384.speedup_K8", gpu(H100, {"speedup": 1.9}), REPRODUCED,
         gpu(H100, {"speedup": 4.0})),
        ("table6.t16384.speedup_K8", gpu(H200, {"speedup": 1.9}), DIRECTION,
         gpu(H200, {"speedup": 0.5})),
    ],
    "rival": [
        ("table1.performer.ppl", rivals(performer=0.8), DIRECTION, rivals(performer=-0.1)),
        ("table10.sparq.ppl", rivals(sparq_plain=0.1), DIRECTION, rivals(sparq_plain=-0.02)),
    ],
    "others_do_it": [
        ("audit.8", rivals(quest=-0.03, moba=0.4), DIRECTION, rivals(quest=0.3, csa=-0.03)),
    ],
    "none_is_better": [
        ("ours.rivals", rivals(quest=0.03, csa=-0.03), REPRODUCED, rivals(quest=-0.02, moba=0.4)),
    ],
    "adapted_under_the_mask": [("ours.masked", again(-0.09), REPRODUCED, again(-0.05))],
    "unchanged": [
        ("table1.focus.hellaswag", answers(0, 0.0), ARITHMETIC, answers(8, 0.2)),
        ("table1.focus.hellaswag", answers(0, 0.1), DIRECTION, answers(9, 0.1)),
    ],
    "after_examples": [("ours.many_shot.paper", many_shot(0), REPRODUCED, many_shot(9))],
    "retrofit": [
        ("table2.gpt2-124m.ppl_focus",
         types(34.2 / 20.0855 / 1.284 - 1, 0.1, TRAINED, **THEIR_GPT2), REPRODUCED,
         types(0.5, 0.1, TRAINED, **THEIR_GPT2)),
        ("table2.gpt2-124m.ppl_focus", types(-0.05, 0.1), DIRECTION, types(0.05, 0.1, TRAINED)),
        ("table2.mistral-7b.ppl_focus", types(0.0, 0.01), DIRECTION, types(0.0, 0.3, TRAINED)),
        ("table2.llama-2-13b.ppl_focus", types(0.0, 0.01), DIRECTION, types(0.0, 0.05, TRAINED)),
    ],
    "every_type": [
        ("table2.notes.coverage.architectures", types(0.01, 0.1), DIRECTION, types(0.2, 0.3)),
    ],
    "score": [
        ("table2.mistral-7b.hellaswag", answers(0, 0.1), DIRECTION, answers(9, 0.1)),
    ],
    "worst_drop": [
        ("table2.notes.benchmarks.worst_drop", answers(0, 0.1), DIRECTION, answers(9, 0.1)),
    ],
    "model": [
        ("table5.gpt2-large-774m.ppl_focus_ft", tuned(0.01), DIRECTION, tuned(0.1, steps=4000)),
    ],
    "domain": [
        ("domains.openwebtext.ppl_focus_ft", tuned(-0.03, texts="essays"), DIRECTION,
         tuned(0.03, texts="essays", steps=4000)),
    ],
    "from_scratch": [
        ("from_scratch.mistral-7b.ppl_focus", tuned(0.0, texts="articles", names=SCRATCH_NAMES),
         DIRECTION, tuned(0.1, texts="articles", names=SCRATCH_NAMES, steps=4000)),
    ],
    "gains": [
        ("table5.gpt2-124m.ppl_full_attention_ft", tuned(0.0), DIRECTION,
         tuned(0.0, full=0.1, steps=4000)),
    ],
    "rival_score": [
        ("table1.performer.lambada", rivals_answers(9, "performer"), DIRECTION,
         rivals_answers(0, "performer")),
        ("table10.sparq-mean-reallocation.lambada", rivals_answers(0, "sparq"), DIRECTION,
         rivals_answers(9, "sparq")),
        ("table10.sparq-mean-reallocation.lambada", rivals_answers(0, "sparq", 0.0), ARITHMETIC,
         rivals_answers(9, "sparq")),
    ],
    "finetuned": [
        ("table1.full-attention-finetune.ppl", tuned(0.0), DIRECTION,
         tuned(0.0, full=0.1, steps=4000)),
    ],
    "longer": [
        ("long_context.t8192.ppl_topk2", longer(0.05), DIRECTION, longer(0.2, steps=4000)),
    ],
    "pair_of_groups": [
        ("table9.notes.k2.window.512.ppl_window_change", pairs(0.1, 512), DIRECTION,
         pairs(-0.2, 512, TRAINED)),
        ("table9.notes.k2.window.16.ppl", pairs(0.1, 512), DIRECTION,
         costly_pair),
    ],
    "setting_changed": [
        ("table9.k.32.centroid_ppl", ablated(0.1, 24.0, num_groups=32), DIRECTION,
         ablated(-0.1, 24.0, TRAINED, num_groups=32)),
        ("table9.window.512.centroid_ppl", ablated(0.0, 24.0, window=512), DIRECTION,
         ablated(-0.1, 24.0, TRAINED, window=512)),
        ("table9.tau.0.05.finetuned_ppl", ablated(0.0, 24.0, JOINT, temperature=0.05), DIRECTION,
         ablated(0.1, 24.0, LONG, temperature=0.05)),
    ],
    "dimensions": [
        ("routing_dim.r768.ppl", ablated(0.0, 24.0, routing_dim=576), DIRECTION,
         ablated(-0.1, 24.0, TRAINED, routing_dim=576)),
    ],
    "groups_changed": [
        ("table9.sinkhorn-iterations.3.dominance_centroid",
         ablated(0.0, 90.0, sinkhorn_iterations=3), DIRECTION,
         ablated(0.0, 12.0, TRAINED, sinkhorn_iterations=3)),
        ("table9.window.512.dominance_full_ft", ablated(0.0, 24.0, JOINT, window=512), DIRECTION,
         ablated(0.0, 50.0, LONG, window=512)),
    ],
    "escape": [
        ("table8.sinkhorn.drift", cures(("sinkhorn", 13.0, {"drift": 0.1})), DIRECTION,
         cures(("sinkhorn", 13.0, {"drift": 0.5}))),
        ("table8.recluster-every-100-steps.drift", cures(("recluster", 30.0, {"drift": 0.4})),
         DIRECTION, cures(("recluster", 30.0, {"drift": 0.9}))),
        ("table8.stop-gradient-on-inputs.projection", cures(("stop_gradient", 30.0, {})), DIRECTION,
         cures(("stop_gradient", 30.0, {"rank": 9.9}))),
    ],
    "outcome": [
        ("table8.sinkhorn.outcome", cures(("sinkhorn", 13.0, {})), DIRECTION,
         cures(("sinkhorn", 60.0, {}))),
        ("table8.entropy-and-balance-loss.outcome",
         cures(("softmax", 90.0, {}), ("sinkhorn", 13.0, {})), DIRECTION,
         cures(("softmax", 13.0, {"steps": 4000}), ("sinkhorn", 13.0, {}))),
    ],
    "largest_group": [
        ("dominance.sinkhorn.dominance_full_ft", cures(("sinkhorn", 14.0, {})), DIRECTION,
         cures(("sinkhorn", 60.0, {}))),
        ("dominance.softmax-and-balance-loss.dominance_full_ft", cures(("softmax", 90.0, {})),
         DIRECTION, cures(("softmax", 13.0, {"steps": 4000}))),
        ("dominance.sinkhorn.dominance_centroid",
         cures(("sinkhorn", 14.0, {"weights": False})), DIRECTION,
         cures(("sinkhorn", 60.0, {"weights": False}))),
    ],
    "stays": [
        ("dominance.sinkhorn.stability_full_ft", cures(("sinkhorn", 14.0, {"agreement": 0.99})),
         DIRECTION, cures(("sinkhorn", 14.0, {"agreement": 0.5, "steps": 4000}))),
    ],
    "lora_perplexity": [
        ("table3.lora-r4.ppl", lora(-0.1), DIRECTION, lora(0.1)),
        ("table4.lora-r4-lr1e-5.ppl", lora(-0.1), DIRECTION, lora(0.1)),
    ],
    "lora_score": [
        ("table4.lora-r4-lr1e-4.hellaswag", lora(0.2, rate=0.01, wrong=30), DIRECTION,
         lora(0.2, rate=0.01, wrong=-30)),
    ],
    "category": [
        ("groups.g4.category", holds(0.9), DIRECTION, holds(0.45, kmeans=0.2, regime=TRAINED)),
        ("groups.g3.category", holds(0.9, category="determiners"), DIRECTION,
         holds(0.9, regime=TRAINED)),
    ],
    "pure": [("groups.g4.purity", holds(0.95), DIRECTION, holds(0.6, regime=TRAINED))],
    "tokens": [
        ("groups.g4.top_tokens", holds(0.9), DIRECTION, holds(0.9, top="a the", regime=TRAINED)),
    ],
    "even": [
        ("groups.notes.assignment.largest_share", holds(0.9), DIRECTION,
         holds(0.9, even=9000, regime=TRAINED)),
        ("groups.notes.assignment.confidence", sure(20.0), DIRECTION, unsure),
    ],
    "persists": [
        ("groups.notes.full-finetuning.persists", persisting(0.9), DIRECTION,
         persisting(0.6, regime=TRAINED)),
    ],
    "unexposed": [("audit.4", answers(0, 0.0), DIRECTION, answers(0, 0.3))],
    "crossover": [
        ("ours.speed.crossover", table("speed", *lengths(0.5, 2.0)), DIRECTION,
         table("speed", *lengths(2.0, 3.0))),
        ("table6.notes.crossover.slowest_context_with_gain", gpu(H200, *lengths(0.5, 2.0)),
         DIRECTION, gpu(H200, *lengths(0.3, 0.5))),
    ],
    "full_seconds": [
        ("table6.notes.full-attention-at-1m.seconds", gpu(H100, FULL_MILLION), INCONCLUSIVE,
         gpu(H100, ONE_HEAD)),
    ],
    "above_the_bound": [
        ("audit.3", gpu(H200, FULL_MILLION, {"bound": 7.9, "speedup": 6.0, **MILLION}), ARITHMETIC,
         gpu(H200, FULL_MILLION, {"bound": 7.9, "speedup": 9.0, **MILLION})),
    ],
}  # fmt: skip
EVERY = [
    pytest.param(claim, writer, expected, id=f"{name}-{number}-{expected}")
    for name, cases in CASES.items()
    for number, (claim, good, verdict, bad) in enumerate(cases)
    for writer, expected in ((good, verdict), (bad, NOT_REPRODUCED))
]


def decided(claim: str, results: Results, settings: Any) -> Any:
    return rules.decide(CLAIMS[claim], results, settings)


@pytest.mark.parametrize(("claim", "writer", "expected"), EVERY)
def test_every_rule_can_hold_and_can_fail(results, settings, claim, writer, expected):
    writer(results)
    outcome = decided(claim, results, settings)
    assert outcome is not None
    assert outcome.verdict == expected, outcome.why


def test_no_rule_is_without_a_case_and_each_says_what_would_refute_it():
    assert {each.judge.__name__ for each in RULES} == set(CASES)
    for each in RULES:
        assert len(each.refuted) > 20
    for name, cases in CASES.items():
        for claim, *_ in cases:
            assert {rule.judge.__name__ for rule, _ in rules.registry.matching(claim)} == {name}


@pytest.mark.parametrize(
    ("claim", "writer"),
    [
        ("ours.paper.k1", paper({1: 1.2})),  # after few steps, and nothing says they were enough
        ("ours.paper.k1", paper({1: 0.1}, {"wobble": 0.3})),
        ("ours.headline.adapted.0.125", family(-0.08, wobble=0.2)),
        ("audit.9", family(0.0, control=0.0, wobble=0.1)),
        ("ours.speed.crossover", table("speed", *lengths(0.5))),
        ("table6.t16384.speedup_K8", gpu(H200, {"speedup": 1.0})),
        ("audit.5", leaks(0.0011, 0.0)),
        ("table1.longformer.ppl", rivals(longformer=0.0)),
        ("ours.rivals", rivals(quest=0.0)),
        ("table1.focus.hellaswag", answers(1, 0.1)),
        ("table9.k.32.centroid_ppl", ablated(0.0, 24.0, wobble=0.1, num_groups=32)),
        ("dominance.softmax-and-balance-loss.dominance_full_ft", cures(("softmax", 13.0, {}))),
        ("table3.lora-r4.hellaswag", lora(0.0, wrong=1)),
        ("table4.lora-r4-lr1e-4.ppl", lora(-0.1)),  # harm may need more steps
        ("table8.balance-weight-x5.drift", cures(("softmax_x5", 30.0, {}))),
        ("table9.k.32.centroid_ppl", ablated(-0.1, 24.0, num_groups=32)),  # after 24 steps
        ("groups.g4.purity", holds(0.6)),
        ("groups.notes.full-finetuning.persists", persisting(0.6)),
        ("groups.g4.category", holds(0.9, kmeans=0.95)),  # k-means says as much
        ("ours.ladder.grows", rungs((0.02, 0.05, 0.01, 0.03))),
        ("ours.ladder.135m.k1", rungs(GROWING, 0.065, wobble=0.2)),
        ("ours.ladder.135m.k1", rungs((0.02, 0.2, 0.05, 0.1), 0.15)),  # too wide to say anything
    ],
)
def test_what_an_interval_leaves_open_is_inconclusive(results, settings, claim, writer):
    writer(results)
    assert decided(claim, results, settings).verdict == INCONCLUSIVE


@pytest.mark.parametrize("claim", ["table2.qwen2.5-7b.ppl_focus",
                                   "table2.notes.coverage.architectures"])  # fmt: skip
@pytest.mark.parametrize(("window", "verdict"), [(0.2, DIRECTION), (0.001, INCONCLUSIVE)])
def test_a_model_that_reads_near_tokens_alone_proves_nothing(
    results, settings, claim, window, verdict
):
    types(0.0, 0.01, window=window)(results)
    assert decided(claim, results, settings).verdict == verdict


@pytest.mark.parametrize(
    ("control", "more", "verdict", "words"),
    [
        (0.05, 0.02, NOT_REPRODUCED, "keep more pairs"),
        (-0.03, -0.02, DIRECTION, "keeps more pairs"),
    ],
)
def test_whoever_keeps_more_pairs_beats_nobody(results, settings, control, more, verdict, words):
    family(0.0, control=control)(results)
    assert decided("audit.9", results, settings).verdict == verdict
    path = results.root / "recipe" / "read" / "final" / "rows.csv"
    frame = pd.read_csv(path, dtype={"sha": str})
    frame.assign(distant_density=frame["distant_density"] + more).to_csv(path, index=False)
    outcome = decided("audit.9", Results(results.base), settings)
    assert (outcome.verdict, words in outcome.why) == (INCONCLUSIVE, True)


def test_rows_about_models_that_did_not_run_are_not_run(results, settings):
    """One measurement of ours is one row of ours."""
    both(paper({1: 1.2, 2: 0.1}, with_sinks=0.02), table("speed", *lengths(0.5, 2.0)))(results)
    for claim in CLAIMS.values():
        outcome = rules.decide(claim, results, settings)
        if claim.id.startswith(("table7", "table6")) and outcome is not None:
            assert outcome.verdict == CONTRADICTS, claim.id
    assert decided("ours.paper.k1", results, settings).verdict == DIRECTION


def test_nothing_is_plainly_reproduced_in_another_setting(results, settings):
    paper({1: 1.2, 2: -0.02}, **{**GPT2, "texts": "plays", "regime": TRAINED})(results)
    for claim in CLAIMS.values():
        outcome = rules.decide(claim, results, settings)
        assert outcome is None or outcome.verdict != REPRODUCED, claim.id
    assert "plays instead of PG-19" in decided("table7.gpt2-124m.k2.ppl", results, settings).why


def test_another_models_perplexity_is_no_figure_beside_the_papers(results, settings):
    dense(0.0)(results)
    assert decided("table7.gpt2-124m.k3.ppl", results, settings).ours is None
    assert decided("table7.gpt2-124m.k3.pairs_retained", results, settings).ours == 100


def test_facts_tell_where_a_verdict_comes_from(results, settings):
    paper({1: 1.2}, with_sinks=0.02)(results)
    outcome = decided("ours.paper.k1", results, settings)
    assert (outcome.n, outcome.evidence) == (6, "results/laptop/paper/read/final/rows.csv")
    assert outcome.command == "dvc repro read@paper"
    expected = "laptop; smollm2-135m-instruct; unseen; T = 2048; 24 steps; seed 0"
    assert outcome.scale == expected
    assert outcome.ours == pytest.approx(120, abs=1)


@pytest.mark.parametrize("scale", ["smoke", "laptop"])
def test_a_smoke_run_or_random_weights_settle_identities_only(tmp_path, settings, scale):
    results = Results(tmp_path, scale)
    model = "smollm2-135m-instruct" if scale == "smoke" else "tiny-llama"
    rows = {"density": 1.0, "distant_density": 1.0, "wobble": 0.0}
    paper({1: 1.2, 3: 0.0}, rows, with_sinks=0.02, model=model)(results)
    assert decided("ours.paper.k1", results, settings).verdict == INCONCLUSIVE
    assert decided("audit.1", results, settings).verdict == ARITHMETIC


def test_a_rule_cannot_say_reproduced_without_having_checked_the_setting():
    with pytest.raises(ValueError, match="another scale"):
        rules.Outcome(REPRODUCED, "because")
