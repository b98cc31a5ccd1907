"""Small result files, written as the pipeline writes them, for the rules, tables and figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import ladder

TOKENS = 1000
LOSS = 3.0  # nats per token of the pretrained model
FULL = {"name": "full"}
NOTHING = {"name": "none"}
LORA = {"name": "lora", "steps": 24}
ROUTERS = {"name": "centroids", "steps": 24}
RECIPE = {"name": "focus", "num_groups": 18, "sinks": 4, "gate": "log", "routers": "query_head"}
PAPER = {"name": "focus", "num_groups": 4, "sinks": 0, "gate": "eq2", "routers": "paper"}
PAPER_MASK = {"K": 4, "probe": "symmetric", "ngram": 0, "balance": "sinkhorn"}


def losses(
    condition: str,
    budget: object = "own",
    change: float = 0.0,
    *,
    wobble: float = 1e-4,
    seeds: Sequence[int] = (0,),
    apart: float = 0.0,
    documents: int = 6,
    **columns: Any,
) -> list[dict[str, Any]]:
    """Rows of one condition whose perplexity is ``change`` (relative) above the pretrained
    model's.

    Args:
        wobble: how far documents lie apart in that, in nats; ``apart``: seeds.
    """
    base = {
        "condition": condition, "budget": budget, "K": 18, "top_k": 2, "probe": "multi_probe",
        "ngram": 3, "window": 128, "balance": "causal", "density": 0.2, "distant_density": 0.12,
        "sinks": 4, "tokens": TOKENS,
    }  # fmt: skip
    if condition in ("full", "soft"):
        base |= {"density": 1.0, "distant_density": 1.0}
    rows = []
    for n in range(documents):
        for number, seed in enumerate(seeds):
            off = wobble * (n % 2 - 0.5) + apart * (number - (len(seeds) - 1) / 2)
            loss = LOSS + 0.1 * n + np.log1p(change) + off
            row = {"seed": seed, "document": f"book {n}", "sha": f"{n:012x}", "nll": TOKENS * loss}
            rows.append(base | row | columns)
    return rows


def record(folder: Path, **settings: Any) -> None:
    """A run.json of a finished run."""
    folder.mkdir(parents=True, exist_ok=True)
    seeds = settings.pop("seeds", [0])
    told = {"command": "python -m x", "seeds": seeds, "settings": settings}
    (folder / "run.json").write_text(json.dumps(told))


def write_read(
    root: Path,
    block: str,
    rows: list[dict[str, Any]],
    *,
    reading: str = "final",
    texts: str = "unseen",
    cell: str | None = None,
    method: dict[str, Any] = FULL,
    regime: dict[str, Any] = NOTHING,
    against: Sequence[str] = (),
    model: str = "smollm2-135m-instruct",
    context: int = 2048,
    start: str | None = None,
    **reads: Any,
) -> Path:
    """A finished reading of one cell; cells of one block are added to each other."""
    folder, cell = root / block / "read" / reading, cell or block
    known = {"name": cell, "block": block, "model": model, "method": method, "regime": regime,
             "against": list(against), "texts": texts, "start": start}  # fmt: skip
    path, cells = folder / "rows.csv", {cell: known}
    frame = pd.DataFrame([{"experiment": block, "cell": cell, "texts": texts} | r for r in rows])
    if path.is_file():
        frame = pd.concat([pd.read_csv(path, dtype={"sha": str}), frame], ignore_index=True)
        cells = json.loads((folder / "run.json").read_text())["settings"]["cells"] | cells
    told = {"kind": "perplexity", "texts": [texts], "context": context, "final": True} | reads
    seeds = sorted({int(seed) for seed in frame["seed"]})
    record(folder, cells=cells, reading=told, seeds=seeds)
    frame.to_csv(path, index=False)
    return path


def write_pretrained(root: Path, block: str = "pretrained", **how: Any) -> None:
    """The pretrained model, read on six documents."""
    write_read(root, block, losses("full"), **how)


def write_adapted(root: Path, change: float = -0.1, block: str = "adapted", **how: Any) -> None:
    """The adapted model under full attention."""
    regime = how.pop("regime", LORA)
    write_read(root, block, losses("full", change=change), regime=regime,
               against=["pretrained"], **how)  # fmt: skip


def write_masks(
    root: Path, block: str, changes: dict[object, float], *, method: Any = RECIPE,
    regime: Any = NOTHING, against: Sequence[str] = ("adapted", "pretrained"),
    rows: dict[str, Any] | None = None, **how: Any,
) -> None:  # fmt: skip
    """An experiment under masks: changes against the pretrained model by budget."""
    every = [row for budget, change in changes.items()
             for row in losses("hard", budget, change,
                               **({"distant_density": budget} if isinstance(budget, float) else {})
                               | (rows or {}))]  # fmt: skip
    write_read(root, block, every, method=method, regime=regime, against=against, **how)


def write_paper(
    root: Path, changes: dict[int, float], *, block: str = "paper", method: Any = None,
    regime: Any = ROUTERS, rows: dict[str, Any] | None = None, **how: Any,
) -> None:  # fmt: skip
    """The paper's setup with k groups of four: changes against the pretrained model by k."""
    every = [
        row for k, change in changes.items()
        for row in losses("hard", f"k{k}.symmetric.sinkhorn", change,
                          **PAPER_MASK | {"top_k": k} | (rows or {}))
    ]  # fmt: skip
    write_read(root, block, every, method=method or PAPER, regime=regime, against=["pretrained"],
               **how)  # fmt: skip


def write_copying(
    root: Path, block: str, again: float, *, budget: object = "own", wobble: float = 0.001,
    **how: Any,
) -> None:  # fmt: skip
    """A passage read again at a loss of ``again`` nats under a mask, at 0.5 under full attention,
    and at 3 when new."""
    nats = {"hard": again, "full": 0.5, "new": 3.0}
    rows = [
        row | {"nll": TOKENS * (loss + wobble * (n % 2))}
        for name, loss in nats.items()
        for n, row in enumerate(losses(name, budget if name == "hard" else "own", distance=512))
    ]
    write_read(root, block, rows, reading="copying", kind="copying", **how)


def write_leak(
    root: Path, sinkhorn: float, causal: float, block: str = "paper", method: Any = None
) -> None:
    """Shares of earlier assignments that a suffix changes, by balance."""
    rows = [
        {"seed": 0, "balance": balance, "document": f"book {n}", "max_logit_change": 1.0,
         "changed": share * (0.9 + 0.05 * n), "largest_group": 0.3, "one_plus_cv2": 1.1}
        for balance, share in (("sinkhorn", sinkhorn), ("causal", causal)) for n in range(4)
    ]  # fmt: skip
    write_read(root, block, rows, reading="leak", kind="leak", method=method or PAPER,
               regime=ROUTERS)  # fmt: skip


def write_training(root: Path, block: str, losses_by_step: Sequence[float]) -> None:
    """The course of one training."""
    folder = root / block / "train" / "seed0" / block
    record(folder, model="smollm2-135m-instruct", method=RECIPE, regime=ROUTERS, seed=0)
    steps = range(1, len(losses_by_step) + 1)
    frame = pd.DataFrame({"seed": 0, "step": steps, "loss": losses_by_step})
    frame.to_csv(folder / "train.csv", index=False)


def write_table(root: Path, stage: str, *rows: dict[str, Any]) -> None:
    """The table of a measurement without training; every row is BASES' unless it says otherwise."""
    record(root / stage)
    frame = pd.DataFrame([BASES[stage] | values for values in rows])
    frame.to_csv(root / stage / "table.csv", index=False)


WHOLE = {
    "experiment": "untrained", "device": "cpu", "length": 8192, "dtype": "float32",
    "full_s": 2.0, "ours_s": 1.0,
    "speedup": 2.0, "speedup_low": 1.9, "speedup_high": 2.1, "repetitions": 5,
}  # fmt: skip
BASES: dict[str, dict[str, Any]] = {
    "speed": {
        "device": "cpu", "length": 16384, "K": 8, "k": 1, "probe": "symmetric", "window": 128,
        "heads": 9, "key_heads": 3, "head_dim": 64, "dtype": "float32", "method": "ours",
        "direction": "forward", "median_s": 1.0, "low_s": 0.99, "high_s": 1.01, "speedup": 5.0,
        "density": 0.14, "bound": 7.1, "tflops": 0.1, "repetitions": 5,
    },
    "exactness": {
        "K": 4, "k": 1, "window": 64, "sinks": 0, "length": 111, "dtype": "float32",
        "groups": "balanced", "method": "log_sum_exp", "output_cosine": 1.0, "output_error": 1e-6,
        "gradient_error": 1e-6, "passed": True,
    },
    "decode": {
        "device": "cpu", "context": 2048, "dtype": "float32", "K": 8, "k": 1, "probe": "symmetric",
        "routers": "layer", "extra_keys": 0, "method": "ours", "median_s": 1.0, "low_s": 0.9,
        "high_s": 1.2, "speedup": 2.0, "bound": 4.0, "error": 1e-7, "repetitions": 9,
    },
    "masks": {
        "device": "cpu", "length": 16384, "method": "groups", "K": 18, "k": 2, "heavy": 0.0,
        "budget": None, "density": 0.13, "time": 0.2, "time_low": 0.18, "time_high": 0.22,
        "repetitions": 5,
    },
    "prefill": WHOLE | {"outside_s": 0.5, "density": 0.2, "bound": 2.5, "share_of_bound": 0.8},
    "continuation": WHOLE | {"new_tokens": 48},
}  # fmt: skip


def gpu_report(base: Path, device: str, *rows: dict[str, Any]) -> None:
    """A report of a GPU: the paper's decomposition unless a row says otherwise."""
    (base / "gpu").mkdir(parents=True, exist_ok=True)
    shape = {"device": "cuda", "heads": 32, "key_heads": 8, "head_dim": 128, "method": "paper_k1"}
    report = {"hardware": {"device": device},
              "speed": [BASES["speed"] | shape | row for row in rows]}  # fmt: skip
    (base / "gpu" / "report.json").write_text(json.dumps(report))


def write_answers(
    root: Path, *, changed: int = 0, exposure: float = 0.0, task: str = "hellaswag",
    block: str = "answers_paper", method: Any = None, shots: int = 0,
    full: str = "answers_pretrained", right: float = 1.0, steps: int = 0,
) -> None:  # fmt: skip
    """Ten questions, all answered by the pretrained model (or none, where ``right`` is 0), and some
    of them not under another one's mask, the paper's."""
    reading = "many_shot" if shots else "benchmarks"
    masked = block
    for block, condition in ((full, "full"), (masked, "hard")):
        wrong = changed if condition == "hard" else 0
        rows = [
            {"seed": 0, "condition": condition, "budget": "k2" if wrong or condition == "hard"
             else "own", "document": str(n), "sha": f"{n:012x}", "shots": shots, "correct": right,
             "correct_norm": right * (n >= wrong), "right_nats": -3.0 - 0.5 * (condition == "hard"),
             "tokens": 90, "exposure": exposure}
            for n in range(10)
        ]  # fmt: skip
        hard = {"method": method or PAPER, "against": [full]}
        hard |= {"regime": ROUTERS | {"steps": steps}} if steps else {}
        write_read(root, block, rows, reading=reading, texts=task, kind="benchmarks",
                   **(hard if condition == "hard" else {}))  # fmt: skip


def write_ruler(root: Path, lost: float, *, found: float | None = None, method: Any = RECIPE,
                lengths: Sequence[int] = (1024, 2048), block: str = "ruler_recipe",
                against: Sequence[str] = ("ruler_adapted",)) -> None:  # fmt: skip
    """Two tasks of four questions: a mask that finds a share of each answer (None: every second
    answer), the right ones ``lost`` nats per token dearer than under full attention, which is
    written with the recipe."""
    for name in (block, "ruler_adapted") if block == "ruler_recipe" else (block,):
        hard = name == block
        rows = [
            {"seed": 0, "condition": "hard" if hard else "full",
             "budget": "0.125" if hard else "own", "texts": task,
             "document": str(n), "sha": f"{task}{n}", "length": length, "tokens": 10,
             "nll": 10 * (1 + n + lost * hard),
             "found": (n % 2 if found is None else found) if hard else 1.0,
             "distant_density": 0.1 if hard else 1.0}
            for task in ("single", "squad") for length in lengths for n in range(4)
        ]  # fmt: skip
        known = {"method": method, "against": against} if hard else {}
        write_read(root, name, rows, reading="ruler", kind="ruler",
                   start="recipe" if hard else "adapted", **known)  # fmt: skip


DEFAULT = {**PAPER, "num_groups": 8}  # the rest is the library's
JOINT = {"name": "joint", "steps": 24, "context": 256, "weights": True, "mitigation": "sinkhorn"}


def write_ablation(root: Path, block: str, change: float, largest: float, *,
                   against: Sequence[str] = ("pretrained",), wobble: float = 1e-4,
                   regime: Any = ROUTERS, **fields: Any) -> None:  # fmt: skip
    """One setting of the paper's setup: its loss under the training gate, and its groups."""
    method = DEFAULT | fields
    known = {"method": method, "regime": regime, "against": against}
    write_read(root, block, losses("soft", change=change, wobble=wobble), **known)
    write_groups(root, block, largest, wobble=1000 * wobble, **known)


def write_groups(root: Path, block: str, largest: float, *, wobble: float = 0.1,
                 **how: Any) -> None:  # fmt: skip
    """Percent of the tokens in the largest group, in two layers and six documents."""
    rows = [
        {"seed": 0, "condition": "soft", "budget": "own", "document": f"book {n}",
         "sha": f"{n:012x}", "layer": layer, "confidence": 0.9, "one_plus_cv2": 1.1,
         "largest_group": (largest + wobble * (n % 2 - 0.5)) / 100}
        for n in range(6) for layer in range(2)
    ]  # fmt: skip
    write_read(root, block, rows, reading="groups", kind="groups", **how)


def write_cure(root: Path, mitigation: str, largest: float, *, weights: bool = True,
               steps: int = 60, apart: float = 0.01, base: str = "stable",
               **last: float) -> None:  # fmt: skip
    """A joint training that was watched: its groups on documents, and its trace."""
    block = base if mitigation == "sinkhorn" else f"{base}_softmax"
    block = block if weights else f"{base}_routers"
    cell = f"{block}-mitigation{mitigation}"
    regime = JOINT | {"mitigation": mitigation, "weights": weights, "steps": steps}
    known = {"method": DEFAULT, "regime": regime, "against": [base]}
    write_groups(root, block, largest, cell=cell, **known)
    folder = root / block / "train" / "seed0" / cell
    record(folder, model="smollm2-135m-instruct", texts="plays", seed=0, **known)
    first = {"largest_group": 0.2, "one_plus_cv2": 1.1, "alive": 8, "confidence": 0.9,
             "agreement": 0.95, "drift": 0.0, "shift": 0.0, "rank": 10.0}  # fmt: skip
    end = first | {"drift": 0.5, "shift": 0.5, "rank": 5.0} | last
    rows = [{"step": step, "layer": layer, **{name: value * (1 + apart * (layer - 1.5))
             for name, value in each.items()}}
            for step, each in ((1, first), (steps, end)) for layer in range(4)]  # fmt: skip
    pd.DataFrame(rows).to_csv(folder / "groups.csv", index=False)


def write_lora(root: Path, change: float, *, rate: float = 0.0005, block: str = "lora4",
               cell: str | None = None, wrong: int = 0) -> None:  # fmt: skip
    """LoRA on plays: its loss on validation and test documents; answers, ``wrong`` of which the
    model before alone has right (below zero: LoRA alone)."""
    known = {"cell": cell, "method": FULL, "regime": LORA | {"learning_rate": rate, "rank": 4},
             "against": ["pretrained", "answers_pretrained"]}  # fmt: skip
    write_pretrained(root)
    write_read(root, block, losses("full", change=change), **known)
    write_read(root, block, losses("full", change=change), reading="search", final=False, **known)
    for name, missed in ((block, max(0, wrong)), ("answers_pretrained", max(0, -wrong))):
        rows = [
            {"seed": 0, "condition": "full", "budget": "own", "document": str(n),
             "sha": f"{n:012x}", "shots": 0, "correct": float(n >= missed), "correct_norm": None,
             "right_nats": -3.0, "tokens": 90, "exposure": 0.0}
            for n in range(100)
        ]  # fmt: skip
        own = known if name == block else {}
        write_read(root, name, rows, reading="benchmarks", texts="hellaswag", kind="benchmarks",
                   **own)  # fmt: skip


CATEGORIES = ("punctuation", "determiners", "prepositions", "connectives", "verbs and pronouns",
              "content nouns", "modifiers", "other")  # fmt: skip


def write_contents(root: Path, pure: float, kmeans: float = 0.3, top: str = ", .",
                   category: str = "punctuation", even: int = 0, block: str = "held",
                   regime: Any = NOTHING) -> None:  # fmt: skip
    """Eight groups in each of three layers, the first of which holds a category, and that of the
    first layer its most frequent tokens; on both sides."""
    known = {"method": DEFAULT, "regime": regime}
    for reading in ("contents_search", "contents"):
        rows = []
        ways = {"groups": pure, "kmeans": kmeans, "token": 0.2, "permuted": 0.2}
        for n, layer in product(range(4), range(3)):
            for by, own in ways.items():
                for group in range(8):
                    members = 1000 + (even if group == 0 else 0)
                    share = own + 0.01 * (n % 2)
                    held = dict.fromkeys(CATEGORIES, 0)
                    held["other"] = round(members * (1 - share))
                    held[category if group == 0 else "content nouns"] += members - held["other"]
                    row = {"seed": 0, "condition": "soft", "budget": "own", "layer": layer,
                           "document": f"play {n}", "sha": f"{n:012x}", "by": by,
                           "group": group, "members": members,
                           "top": "of in" if layer or group else top}  # fmt: skip
                    rows.append(row | held)
        write_read(root, block, rows, reading=reading, kind="contents", **known)


def write_information(root: Path, block: str, *by_document: str) -> None:
    """What groups tell of tokens, and the groups of each document, alike in two layers."""
    rows = [
        {"seed": 0, "condition": "soft", "budget": "own", "document": f"play {n}",
         "sha": f"{n:012x}", "layer": layer, "speech": 0.2 + 0.1 * n, "token": 0.3,
         "frequency": 0.1, "position": 0.0, "groups": groups}
        for n, groups in enumerate(by_document) for layer in (0, 1)
    ]  # fmt: skip
    write_read(root, block, rows, reading="information", kind="information")


SCRATCH = {"name": "scratch", "steps": 24}


def write_types(root: Path, soft: float, hard: float, *, models: Sequence[str],
                regime: Any = ROUTERS, texts: str = "articles", window: float | None = None,
                **where: Any) -> None:  # fmt: skip
    """Models under full attention, and changes of the paper's setup, and of a window, on them."""
    for model in models:
        how = {"model": model, "reading": "small", "texts": texts, **where}
        write_read(root, "types", losses("full"), cell=f"types-model{model}", regime=SCRATCH, **how)
        rows = [*losses("soft", change=soft),
                *losses("hard", "k2", hard, **PAPER_MASK | {"top_k": 2})]  # fmt: skip
        write_read(root, "types_paper", rows, cell=f"types_paper-model{model}", method=PAPER,
                   regime=regime, against=["types"], **how)  # fmt: skip
        if window is not None:
            write_read(
                root,
                "types_window",
                losses("hard", change=window),
                against=["types"],
                cell=f"types_window-model{model}",
                method={"name": "window"},
                **how,
            )


def write_ladder(root: Path, costs: Sequence[float], ahead: float | None = None, *,
                 wobble: float = 3e-4, window: float = 0.5) -> None:  # fmt: skip
    """The paper's setup on models of four sizes: what one group of four costs each, with a quarter
    of the distant pairs, two groups a tenth of that; and what it costs the next rung."""
    models = dict(zip(ladder.RUNGS, costs, strict=False))
    next_rung = {name: cost for name in ladder.NEXT if (cost := ahead) is not None}
    for place, own in (("ladder", models), ("next_rung", next_rung)):
        for model, cost in own.items():
            how = {"model": model, "reading": "ladder", "texts": "articles", "context": 512}
            names = {part: f"{place}{part}" for part in ("", "_paper", "_window")}
            cells = {part: f"{name}-model{model}" for part, name in names.items()}
            regime = SCRATCH if place == "ladder" else NOTHING
            write_read(root, names[""], losses("full"), cell=cells[""], regime=regime, **how)
            known = {**PAPER_MASK, "wobble": wobble, "window": 8}
            rows = [
                row for k, change, kept in ((1, cost, 0.25), (2, cost / 10, 0.85))
                for row in losses("hard", f"k{k}.symmetric.sinkhorn", change,
                                  **known | {"top_k": k, "distant_density": kept})
            ]  # fmt: skip
            write_read(root, names["_paper"], rows, cell=cells["_paper"], method=PAPER,
                       regime=ROUTERS, against=[names[""]], **how)  # fmt: skip
            near = losses("hard", change=window, window=8, distant_density=0.0)
            write_read(root, names["_window"], near, cell=cells["_window"], against=[names[""]],
                       method={"name": "window"}, **how)  # fmt: skip


def write_tuned(root: Path, change: float, *, texts: str = "plays", full: float = -0.1,
                names: tuple[str, str, str] = ("before", "finetuned", "finetuned_focus"),
                steps: int = 24) -> None:  # fmt: skip
    """A model before, after all its weights were trained, and that with Focus, whose change is
    against the second."""
    before, plain, routed = names
    how = {"reading": "domains", "texts": texts}
    whole = {"name": "full", "steps": steps}
    write_read(root, before, losses("full"), **how)
    write_read(root, plain, losses("full", change=full), regime=whole, against=[before],
               cell=f"{plain}-texts{texts}", **how)  # fmt: skip
    after = (1 + full) * (1 + change) - 1
    write_read(root, routed, losses("soft", change=after), method=PAPER, against=[plain],
               regime={**JOINT, "steps": steps}, cell=f"{routed}-texts{texts}", **how)  # fmt: skip


def write_lengths(root: Path, change: float, *, contexts: Sequence[int] = (1024, 8192),
                  steps: int = 24) -> None:  # fmt: skip
    """Two of four groups at several lengths against full attention, and what they start from."""
    record(root / "paper" / "train" / "seed0" / "paper", model="smollm2-135m-instruct",
           method=PAPER, regime={**ROUTERS, "steps": steps, "context": 1024})  # fmt: skip
    for context in contexts:
        how = {"reading": f"long_{context}", "texts": "plays", "context": context}
        write_read(root, "long_pretrained", losses("full"), **how)
        rows = losses("hard", "k2", change, **PAPER_MASK | {"top_k": 2})
        write_read(root, "long_paper", rows, method=PAPER, against=["long_pretrained"],
                   start="paper", **how)  # fmt: skip


def write_positions(root: Path, cost: float) -> None:
    """Two stretches of four documents; a mask costs nothing in the first, ``cost`` nats per token
    in the second, where a tenth of the keys lie in other groups."""
    for block, condition in (("long_pretrained", "full"), ("long_paper", "hard")):
        hard = condition == "hard"
        rows = [
            {"seed": 0, "condition": condition, "budget": "k2" if hard else "own", "texts": "plays",
             "document": str(n), "sha": str(n), "position": start, "tokens": 10,
             "nll": 10 * (3 + 0.1 * n + cost * hard * bool(start)),
             **({"largest": 30.0, "moved": 10.0 * bool(start)} if hard else {})}
            for n in range(4) for start in (0, 1024)
        ]  # fmt: skip
        known = {"method": PAPER, "against": ["long_pretrained"], "start": "paper"} if hard else {}
        write_read(root, block, rows, reading="positions", kind="positions", **known)


def write_chat(root: Path, lora: float, mask: float, costs: bool = True) -> None:
    """Four questions, bare and after a text: nats per token of LoRA, and of a mask, which bare ones
    are out of reach of; ``costs``: and what the mask costs on plays."""
    trained = {"regime": LORA | {"learning_rate": 0.002, "rank": 4}}
    plays = {"reading": "plays", "texts": "plays", "against": ["plays_pretrained"]}
    answers = plays | {"reading": "chat", "kind": "chat"}
    for reading, final in (("plays", True), ("search", False)):
        rows, how = losses("full", change=-0.1), plays | {"reading": reading, "final": final}
        write_read(root, "lora4", rows, **how, **trained)
    name = "k2.symmetric.sinkhorn"
    if costs:
        write_pretrained(root, block="plays_pretrained", **plays | {"against": []})
        write_read(root, "paper", losses("hard", name, 0.1, **PAPER_MASK), method=PAPER, **plays)
    write_read(root, "lora4", asked(lora, lora), **answers, **trained)
    hard = asked(0.0, mask, condition="hard", budget=name, distant_density=0.8)
    write_read(root, "answers_paper", hard, method=PAPER, start="paper", **answers)


def asked(bare: float, after: float, **where: Any) -> list[dict[str, Any]]:
    """Rows of four questions, at both lengths."""
    known = {"seed": 0, "condition": "full", "budget": "own", "texts": "plays", "tokens": 32,
             "agreed": 90.0, "distant_density": 1.0, **where}  # fmt: skip
    return [{**known, "document": str(n), "before": before, "divergence": (1 + 0.1 * n) * nats}
            for before, nats in ((0, bare), (1024, after)) for n in range(4)]  # fmt: skip


def write_plan(base: Path) -> None:
    """What two models would need, as `python -m experiments.stages.cost --all` writes it."""
    parts = {"train_weights": 2**34, "train_gathered": 2**33, "train_gradients": 2**30,
             "train_optimiser": 2**31, "train_activations": 2**32, "infer_weights": 2**35,
             "infer_cache": 2**31, "infer_activations": 2**30}  # fmt: skip
    rows = [{"model": name, "scale": "cluster", "parameters": count, **parts}
            for name, count in (("small", 10**9), ("large", 10**10))]  # fmt: skip
    (base / "tables").mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(base / "tables" / "plan.csv", index=False)
