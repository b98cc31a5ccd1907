"""Stage topk (paper: Table 7): perplexity of a variant under every hard mask.

`python -m experiments.stages.topk --cell VARIANT` scores the held-out books with the pretrained
model, the soft gate and the hard masks of params.yaml (`topk`), each with sequence-wide Sinkhorn
and with causal potentials, and writes results/topk/VARIANT/table.csv and documents.csv. Relative
changes are paired over documents. A killed run goes on from the last finished setting.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

import focus
from experiments import evaluation, models, settings
from experiments.data import manifest
from experiments.evaluation import DocumentScore, Partial
from experiments.record import Run
from experiments.settings import Settings
from focus.density import PairCounts

PARTIAL = Path("checkpoints/topk")


@dataclass(frozen=True)
class Setting:
    """One way to run the model: its mode and, where it routes, the balance, probe and k."""

    mode: str
    balance: str = "none"
    probe: str = "none"
    top_k: int = 0

    @property
    def name(self) -> str:
        """A key for metrics: pretrained, soft.causal, hard.causal.symmetric.k2."""
        if self.mode == "pretrained":
            return self.mode
        if self.mode == "soft":
            return f"soft.{self.balance}"
        return f"hard.{self.balance}.{self.probe}.k{self.top_k}"


def main() -> None:
    """Command line of the stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", required=True, help="a name under `variants` in params.yaml")
    cell = parser.parse_args().cell
    chosen = settings.load()
    torch.set_num_threads(chosen.threads)
    with Run("topk", cell, chosen) as run:
        topk(run, cell, chosen)


def topk(run: Run, cell: str, chosen: Settings) -> None:
    """Scores every setting of one variant and records it."""
    adapter = Path("results/retrofit") / cell / "adapter"
    model, _ = models.load(chosen.model.name, chosen.model.dtype)
    focus.load_adapter(model, adapter)
    documents = evaluation.protocol_windows(chosen.protocol)
    partial = Partial(PARTIAL / f"{cell}.json", fingerprint(chosen, adapter))
    wanted = wanted_settings(chosen, chosen.variant(cell)[0].num_groups)
    reference = logits_of(model, Setting("pretrained"), documents[0][1][:1])
    found: dict[Setting, dict] = {}
    with evaluation.progress() as bar:
        windows = sum(len(w) for _, w in documents)
        task = bar.add_task(cell, total=windows * len(wanted))
        for setting in wanted:
            bar.update(task, description=f"{cell} {setting.name}", completed=windows * len(found))
            found[setting] = partial.get(
                setting.name,
                lambda s=setting: evaluate(
                    model, s, documents, chosen, reference, lambda: bar.advance(task)
                ),
            )
    record(run, cell, chosen, found)
    partial.done()


def wanted_settings(chosen: Settings, num_groups: int) -> list[Setting]:
    """Pretrained, soft (under one balance) and hard settings, none of them twice under two
    names.

    Multi-probe at k = 1 is the symmetric mask; and where two sets of k groups must meet (2k > K)
    every pair is kept whatever the balance, so the first balance stands for all.
    """
    hard = [
        Setting("hard", balance, probe, k)
        for balance in chosen.topk.balances
        for probe in chosen.topk.probes
        for k in chosen.topk.ks
        if not (probe == "multi_probe" and k == 1)
        and not (probe == "symmetric" and 2 * k > num_groups and balance != chosen.topk.balances[0])
    ]
    # The paper's soft figures are Sinkhorn's.
    balances = chosen.topk.balances
    soft = Setting("soft", "sinkhorn" if "sinkhorn" in balances else balances[0])
    return [Setting("pretrained"), soft, *hard]


def evaluate(
    model: PreTrainedModel,
    setting: Setting,
    documents: list[tuple[str, Tensor]],
    chosen: Settings,
    reference: Tensor,
    advance: Callable[[], None],
) -> dict:
    """Scores one setting: document scores, density, and the first window's logit difference."""
    counts: list[PairCounts | None] = []

    def after_window() -> None:
        counts.extend(focus.pair_counts(model).values())
        advance()

    with entered(model, setting):
        scores = evaluation.score_documents(
            model, documents, chosen.protocol.score_from, after_window
        )
    logits = logits_of(model, setting, documents[0][1][:1])
    pairs = PairCounts.total(counts)
    return {
        "scores": evaluation.score_to_plain(scores),
        "density": pairs.density if pairs.causal else 1.0,
        "distant_density": pairs.distant_density if pairs.distant else 1.0,
        "max_logit_difference": float((logits - reference).abs().max()),
    }


def entered(model: PreTrainedModel, setting: Setting) -> focus.mode:
    """The model in a setting's mode."""
    if setting.mode == "pretrained":
        return focus.mode(model, "full")
    if setting.mode == "soft":
        return focus.mode(model, "soft", balance=setting.balance)
    return focus.mode(
        model, "hard", balance=setting.balance, top_k=setting.top_k, probe=setting.probe
    )


@torch.no_grad()
def logits_of(model: PreTrainedModel, setting: Setting, window: Tensor) -> Tensor:
    """Logits (1, T, vocabulary) of one window (1, T) under a setting."""
    with entered(model, setting):
        return model(window.to(model.device), use_cache=False).logits


def fingerprint(chosen: Settings, adapter: Path) -> str:
    """Names everything a score depends on beside the setting itself."""
    known = [asdict(chosen.protocol), asdict(chosen.model), manifest()]
    digest = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode())
    for path in sorted(adapter.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def record(run: Run, cell: str, chosen: Settings, found: dict[Setting, dict]) -> None:
    """Tables and metrics of a variant, changes paired with the pretrained model's scores."""
    config, _ = chosen.variant(cell)
    scores = {s: evaluation.score_from_plain(part["scores"]) for s, part in found.items()}
    baseline = scores[Setting("pretrained")]
    rows = []
    for setting, part in found.items():
        ppl = evaluation.perplexity_interval(scores[setting], chosen.bootstrap, chosen.seed)
        change = evaluation.relative_change(
            scores[setting], baseline, chosen.bootstrap, chosen.seed
        )
        run.metric(f"{setting.name}.ppl", ppl.value, ppl.low, ppl.high, n=len(baseline))
        run.metric(f"{setting.name}.delta", change.value, change.low, change.high)
        run.metric(f"{setting.name}.density", part["density"])
        rows.append({
            "variant": cell, "K": config.num_groups, "sinks": config.sinks, "gate": config.gate,
            "routers": config.routers, **asdict(setting), "seed": chosen.seed, "ppl": ppl.value,
            "ppl_low": ppl.low, "ppl_high": ppl.high,
            "delta": change.value, "delta_low": change.low, "delta_high": change.high,
            "density": part["density"], "distant_density": part["distant_density"],
            "n_documents": len(baseline), "tokens": sum(s.tokens for s in baseline),
            "max_logit_difference": part["max_logit_difference"],
        })  # fmt: skip
    run.table(pd.DataFrame(rows), "table.csv")
    run.table(documents_table(cell, scores), "documents.csv")
    run.note("seed", chosen.seed)
    run.note("documents", [s.title for s in baseline])


def documents_table(cell: str, scores: dict[Setting, list[DocumentScore]]) -> pd.DataFrame:
    """One row a setting and document: what paired comparisons are made from."""
    return pd.DataFrame([
        {"variant": cell, "setting": setting.name, "document": s.title, "nll": s.nll,
         "tokens": s.tokens}
        for setting, part in scores.items()
        for s in part
    ])  # fmt: skip


if __name__ == "__main__":
    main()
