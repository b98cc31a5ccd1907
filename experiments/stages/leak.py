"""Stage leak (audit point 5): does a later token move an earlier token's group?

For each variant and balance, documents are read twice with the same first half and another
second half. Reported: the share of first-half assignments that differ, the largest change of a
first-half logit, how evenly the groups fill, and the perplexity of hard routing with each balance
at equal density.

`python -m experiments.stages.leak` writes results/leak/metrics.json, table.csv (a row a document)
and perplexity.csv of `leak.variants`. `--trial NAME` takes the routers that `recipe` left in
data/adapters/recipe/NAME/ (the first seed's), under the masks of `leak.readings`, and writes
results/leak/NAME/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

import focus
from experiments import balances, evaluation, settings
from experiments.data import load_split
from experiments.evaluation import DocumentScore
from experiments.record import Run
from experiments.settings import Settings
from experiments.trained import NO_MASK, Routed, asked_for
from focus.balance import balance_statistics


def main() -> None:
    """Command line of the stage."""
    chosen = settings.load()
    torch.set_num_threads(chosen.threads)
    trial, routed = asked_for(__doc__, "leak", chosen)
    with Run("leak", trial, chosen) as run:
        leak(run, routed, chosen)


def leak(run: Run, every: Sequence[Routed], chosen: Settings) -> None:
    """Measures routers under every balance of ``leak.balances``."""
    pairs, documents = suffix_pairs(chosen), evaluation.protocol_windows(chosen.protocol)
    rows, perplexities = [], []
    windows = sum(len(each) for _, each in documents)
    count = len(chosen.leak.balances)
    with evaluation.progress() as bar:
        # Once as pretrained, and at most twice with each balance.
        steps = count * len(pairs) + (1 + 2 * count) * windows
        task = bar.add_task("leak", total=len(every) * steps)
        for done, routed in enumerate(every, 1):
            variant, (model, _) = routed.name, routed.load(chosen)
            for balance in chosen.leak.balances:
                bar.update(task, description=f"leak {variant} {balance}")
                for title, one, other in pairs:
                    found = compare(model, balance, one, other, routed.mask)
                    rows.append(
                        {"variant": variant, "balance": balance, "document": title, **found}
                    )
                    bar.advance(task)
            bar.update(task, description=f"leak {variant} perplexity")
            baseline, own = balances.costs(model, chosen.leak.balances, documents,
                                           chosen.protocol.score_from,
                                           lambda: bar.advance(task), routed.mask)  # fmt: skip
            perplexities += priced(run, chosen, variant, baseline, own)
            bar.update(task, completed=done * steps)
    record(run, chosen, pd.DataFrame(rows))
    run.table(pd.DataFrame(perplexities), "perplexity.csv")


def priced(run: Run, chosen: Settings, variant: str, baseline: list[DocumentScore],
           rows: list[dict[str, Any]]) -> list[dict[str, Any]]:  # fmt: skip
    """Perplexity of each balance, its change against the pretrained model and against the first of
    ``leak.balances``, all paired by document; metrics and table rows.

    Args:
        run: where the metrics go.
        variant: names them.
        baseline, rows: what :func:`experiments.balances.costs` gave.
    """
    table, first = [], rows[0]
    for row in rows:
        scores = row["scores"]
        flat = {"variant": variant, **{k: v for k, v in row.items() if k != "scores"}}
        for name, base in (("delta", baseline), ("versus_first", first["scores"])):
            found = evaluation.relative_change(scores, base, chosen.bootstrap, chosen.seed)
            key = f"{variant}.{row['balance']}.{name}"
            run.metric(key, found.value, found.low, found.high, n=len(scores))
            flat |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
        for name in ("density", "window"):
            run.metric(f"{variant}.{row['balance']}.{name}", row[name])
        table.append(flat | {"ppl": evaluation.perplexity(scores), "n_documents": len(scores)})
    return table


def suffix_pairs(chosen: Settings) -> list[tuple[str, Tensor, Tensor]]:
    """Title and two windows (1, T) a document: the same first half, the second half from its own
    book and from the next one's."""
    context, count = chosen.protocol.context, chosen.leak.documents
    documents = load_split("test")
    if len(documents) < max(2, count):
        raise ValueError(f"leak.documents: {count} asked for, the test split has {len(documents)}")
    half = context // 2
    pairs = []
    for index in range(count):
        here, there = documents[index], documents[(index + 1) % len(documents)]
        one = here.tokens[:context]
        other = torch.cat([one[:half], there.tokens[half:context]])
        pairs.append((here.title, one.unsqueeze(0), other.unsqueeze(0)))
    return pairs


@torch.no_grad()
def compare(model: PreTrainedModel, balance: str, one: Tensor, other: Tensor,
            mask: Mapping[str, Any] = NO_MASK) -> dict[str, float]:  # fmt: skip
    """Share of changed first-half assignments, largest logit change there, and group balance."""
    half = one.shape[1] // 2
    seen = []
    with balances.balanced(model, balance, mask=mask):
        for window in (one, other):
            logits = model(window.to(model.device), use_cache=False).logits[:, :half].float()
            seen.append((logits, [found for _, found in focus.memberships(model).items()]))
    (logits, groups), (other_logits, other_groups) = seen
    changed = [differs(a, b, half) for a, b in zip(groups, other_groups, strict=True)]
    # The keys' groups are what balances even out, and what a query reads.
    statistics = [
        balance_statistics(found.query if found.key is None else found.key) for found in groups
    ]
    return {
        "changed": sum(changed) / len(changed),
        "max_logit_change": float((logits - other_logits).abs().max()),
        "largest_group": sum(s["largest_group"] for s in statistics) / len(statistics),
        "one_plus_cv2": sum(s["one_plus_cv2"] for s in statistics) / len(statistics),
    }


def differs(one: focus.Memberships, other: focus.Memberships, half: int) -> float:
    """Share of first-half tokens whose groups, as a query or as a key, are not the same."""
    sides = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    changed = [(a[..., :half, :] != b[..., :half, :]).any(-1) for a, b in sides]
    return sum(float(each.float().mean()) for each in changed) / len(changed)


def record(run: Run, chosen: Settings, table: pd.DataFrame) -> None:
    """Means over documents with intervals; the table has one row a document."""
    run.table(table, "table.csv")
    for (variant, balance), part in table.groupby(["variant", "balance"], sort=False):
        for name in ("changed", "largest_group", "one_plus_cv2"):
            mean = evaluation.mean_interval(part[name].tolist(), chosen.bootstrap, chosen.seed)
            key = f"{variant}.{balance}.{name}"
            run.metric(key, mean.value, mean.low, mean.high, n=len(part))
        largest = float(part["max_logit_change"].max())
        run.metric(f"{variant}.{balance}.max_logit_change", largest)
    run.note("seed", chosen.seed)


if __name__ == "__main__":
    main()
