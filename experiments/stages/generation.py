"""Stage generation: chain-of-thought on GSM8K questions with the cache, in hard and in full mode.

For each variant's routers: greedy generation of a fixed number of tokens from eight worked examples
and a question. Reported: how often hard mode's next token is the full model's, over the full
model's own text (forced) and when each goes on from its own (free); the answers; seconds; and how
often a step with the cache chose another token than the whole sequence at once would have
(rounding; of both modes). The same from the start of held-out books, a long prompt (long.csv).

`python -m experiments.stages.generation` writes results/generation/table.csv and metrics.json of
`generation.variants`. `--trial NAME` takes the routers that `recipe` left in
data/adapters/recipe/NAME/ (the first seed's), under the masks of `generation.readings`, and writes
results/generation/NAME/.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import focus
from experiments import evaluation, gsm8k, settings
from experiments.data import load_split
from experiments.gsm8k import Question
from experiments.record import Run
from experiments.settings import Settings
from experiments.trained import NO_MASK, Routed, asked_for


def main() -> None:
    """Command line of the stage."""
    chosen = settings.load()
    torch.set_num_threads(chosen.threads)
    trial, routed = asked_for(__doc__, "generation", chosen)
    with Run("generation", trial, chosen) as run:
        generation(run, routed, chosen)


@torch.no_grad()
def generation(run: Run, every: Sequence[Routed], chosen: Settings) -> None:
    """Generates with all routers and writes one row a question."""
    plan, rows, long_rows = chosen.generation, [], []
    run.dtype = plan.dtype
    questions = gsm8k.load(plan.questions)
    batches = [
        questions[i : i + plan.batch_size] for i in range(0, len(questions), plan.batch_size)
    ]
    books = [
        (book.title, book.tokens[: plan.long_prompt].unsqueeze(0))
        for book in load_split("test")[: plan.long_documents]
    ]
    with evaluation.progress() as bar:
        task = bar.add_task("generation", total=len(every) * (len(batches) + len(books)))
        for routed in every:
            name, (model, tokenizer) = routed.name, routed.load(chosen, plan.dtype)
            for title, ids in books:
                bar.update(task, description=f"generation {name} {title}")
                row = go_on(model, ids, plan.long_tokens, routed.mask)
                long_rows.append({"variant": name, "document": title, **row})
                bar.advance(task)
            for batch in batches:
                bar.update(task, description=f"generation {name}")
                found = compare(model, tokenizer, batch, plan.new_tokens, routed.mask)
                rows.extend({"variant": name, **row} for row in found)
                bar.advance(task)
    record(run, chosen, pd.DataFrame(rows))
    record_long(run, pd.DataFrame(long_rows))


def compare(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch: list[Question], count: int,
    hard_mask: Mapping[str, Any] = NO_MASK,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """One row a question: agreement, answers and seconds of both modes (of the whole batch)."""
    ids, mask = padded(tokenizer, [question.prompt for question in batch])
    start = ids.shape[1]
    with focus.mode(model, "full"):
        full, full_seconds = generate(model, ids, mask, count)
        full_whole = predictions(model, full, mask, count)
    with focus.mode(model, "hard", **hard_mask):
        hard, hard_seconds = generate(model, ids, mask, count)
        forced = predictions(model, full, mask, count)
        whole = predictions(model, hard, mask, count)
    for row, question in enumerate(batch):
        theirs, own = full[row, start:], hard[row, start:]
        same = (theirs == own).int()
        texts = [tokenizer.decode(x, skip_special_tokens=True) for x in (theirs, own)]
        answers = [gsm8k.answer(text) for text in texts]
        yield {
            "question": question.number, "prompt_tokens": int(mask[row].sum()), "tokens": count,
            "agreement_forced": float((forced[row] == theirs).float().mean()),
            "agreement_free": float(same.float().mean()),
            "same_until": int(same.cumprod(0).sum()),
            "cache_differs_full": int((full_whole[row] != theirs).sum()),
            "cache_differs_hard": int((whole[row] != own).sum()),
            "answer": question.answer, "answer_full": answers[0], "answer_hard": answers[1],
            "correct_full": answers[0] == question.answer,
            "correct_hard": answers[1] == question.answer,
            "seconds_full": full_seconds / len(batch), "seconds_hard": hard_seconds / len(batch),
            "text_full": texts[0], "text_hard": texts[1],
        }  # fmt: skip


def go_on(model: PreTrainedModel, ids: Tensor, count: int,
          hard_mask: Mapping[str, Any] = NO_MASK) -> dict[str, Any]:  # fmt: skip
    """Both modes from one prompt (1, T): tokens that the cache chose otherwise, and seconds."""
    mask, row = torch.ones_like(ids), {"prompt_tokens": ids.shape[1], "tokens": count}
    for mode, own_mask in (("full", NO_MASK), ("hard", hard_mask)):
        with focus.mode(model, mode, **own_mask):
            out, row[f"seconds_{mode}"] = generate(model, ids, mask, count)
            own = out[:, ids.shape[1] :]
            row[f"cache_differs_{mode}"] = int((predictions(model, out, mask, count) != own).sum())
    return row


def padded(tokenizer: PreTrainedTokenizerBase, prompts: list[str]) -> tuple[Tensor, Tensor]:
    """Token ids and mask (B, T), padded on the left."""
    tokens = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    longest = max(map(len, tokens))
    ids = torch.zeros(len(tokens), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, own in enumerate(tokens):
        ids[row, longest - len(own) :] = torch.tensor(own)
        mask[row, longest - len(own) :] = 1
    return ids, mask


def generate(model: PreTrainedModel, ids: Tensor, mask: Tensor,
             count: int) -> tuple[Tensor, float]:  # fmt: skip
    """Greedy generation of exactly ``count`` tokens with the cache; ids (B, T + count), seconds."""
    started = time.perf_counter()
    out = model.generate(
        ids.to(model.device), attention_mask=mask.to(model.device), max_new_tokens=count,
        min_new_tokens=count, do_sample=False, pad_token_id=0,
    )  # fmt: skip
    return out.cpu(), time.perf_counter() - started


def predictions(model: PreTrainedModel, ids: Tensor, mask: Tensor, count: int) -> Tensor:
    """The most likely next token (B, count) at the last positions, from the whole sequence at
    once; the end of the text is left out, as it is in :func:`generate`."""
    everything = torch.nn.functional.pad(mask, (0, ids.shape[1] - mask.shape[1]), value=1)
    positions = (everything.cumsum(1) - 1).clamp_min(0)
    out = model(
        ids.to(model.device), attention_mask=everything.to(model.device),
        position_ids=positions.to(model.device), use_cache=False, logits_to_keep=count + 1,
    )  # fmt: skip
    logits = out.logits[:, :-1].float()
    ends = model.generation_config.eos_token_id
    for end in ends if isinstance(ends, list) else [ends]:
        if end is not None:
            logits[..., end] = -torch.inf
    return logits.argmax(-1).cpu()


def record(run: Run, chosen: Settings, table: pd.DataFrame) -> None:
    """Means over questions, with intervals."""
    run.table(table, "table.csv")
    for variant, own in table.groupby("variant", sort=False):
        for name in ("agreement_forced", "agreement_free", "same_until", "correct_full",
                     "correct_hard"):  # fmt: skip
            mean = evaluation.mean_interval(
                own[name].astype(float).tolist(), chosen.bootstrap, chosen.seed
            )
            run.metric(f"{variant}.{name}", mean.value, mean.low, mean.high, n=len(own))
        tokens = int(own["tokens"].sum())
        run.metric(f"{variant}.tokens", tokens)
        for mode in ("full", "hard"):
            differs = int(own[f"cache_differs_{mode}"].sum())
            run.metric(f"{variant}.cache_differs_{mode}", differs)
            run.metric(f"{variant}.seconds_a_token_{mode}", own[f"seconds_{mode}"].sum() / tokens)
    run.note("seed", chosen.seed)


def record_long(run: Run, table: pd.DataFrame) -> None:
    """Sums over books."""
    run.table(table, "long.csv")
    for variant, own in table.groupby("variant", sort=False):
        for name in ("tokens", "cache_differs_full", "cache_differs_hard"):
            run.metric(f"{variant}.long.{name}", int(own[name].sum()))


if __name__ == "__main__":
    main()
