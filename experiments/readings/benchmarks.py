"""Benchmark questions by lm-eval's own model class and tasks, question by question.

Beside every score stands its exposure: the share of the causal pairs of the question's longest
prompt that lie beyond the window and the sinks. Where it is zero, a mask changes nothing, and an
unchanged score says nothing.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import lm_eval
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from torch import Tensor
from transformers import PreTrainedModel

from experiments.benchmarks import tasks
from experiments.methods.base import Counting
from experiments.readings.subject import Condition, Rows, Subject
from experiments.settings import Benchmarks

AXES = ("tasks", "shots", "conditions")
LEAST = 128  # tokens that two texts share, of which a shorter beginning saves little
SEEDS = {f"{name}_seed": 0 for name in ("random", "numpy_random", "torch_random", "fewshot_random")}


def rows(subject: Subject, reading: Benchmarks, name: str, shots: int, how: Condition) -> Rows:
    """A row a question: whether it was answered, and what the right answer cost."""
    with tempfile.TemporaryDirectory() as folder, subject.entered(how) as counting:
        task = tasks.load(name, shots, Path(folder))
        chosen = spread(len(task.eval_docs), reading.questions)
        model = Checked(pretrained=subject.model, tokenizer=subject.tokenizer,
                        batch_size=reading.batch_size)  # fmt: skip
        # Where every query has a number of keys, what was kept is to be told.
        by_keys = how.name == "hard" and hasattr(subject.method.settings, "keys")
        model.counting = counting if by_keys else None
        model.beginning = Beginning(subject.model) if goes_on(subject, how) else None
        found = lm_eval.simple_evaluate(model=model, tasks=[task], samples={name: chosen},
                                        task_manager=TaskManager(include_defaults=False),
                                        log_samples=True, bootstrap_iters=0, **SEEDS)  # fmt: skip
    rows = []
    for sample in once(found["samples"][name]):
        which = {"texts": name, "document": str(sample["doc_id"]), "sha": sample["doc_hash"][:12],
                 "shots": shots}  # fmt: skip
        longest = max(map(model.length, requests(sample)))
        exposed = exposure(longest, reading.window, reading.sinks)
        rows.append(subject.row(how, **which, tokens=longest, exposure=exposed, **scores(sample),
                                **model.kept))  # fmt: skip
    return rows


def goes_on(subject: Subject, how: Condition) -> bool:
    """Whether a text's logits are the same from the keys of its beginning on."""
    if how.name == "full":
        return True
    if how.name != "hard" or subject.cell.method.name != "focus":
        return False
    told = subject.method.describe(subject.cell.aim(how.budget))
    return told["balance"] == "causal" and not subject.method.settings.dense_last


class Checked(HFLM):  # type: ignore[misc]
    """lm-eval's own model, which cuts prompts that are too long; this one refuses them.

    Attributes:
        counting: counts the last pass's pairs; None: they are not asked for.
        beginning: runs what texts begin with once; None: each is run as a whole.
        passes: of each pass, its tokens and mean keys a query.
    """

    counting: Counting | None = None
    beginning: Beginning | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.passes: list[tuple[int, float]] = []

    @property
    def kept(self) -> dict[str, float]:
        """``keys``: mean over all queries of all passes; {} where they are not counted."""
        queries = sum(tokens for tokens, _ in self.passes)
        kept = sum(tokens * keys for tokens, keys in self.passes)
        return {"keys": kept / queries} if queries else {}

    def _model_call(self, inps: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.beginning is not None and len(inps) == 1:
            return self.beginning.logits_of(inps)
        found: Tensor = super()._model_call(inps, *args, **kwargs)
        if self.counting is not None:
            tokens = inps.shape[1]
            self.passes.append((tokens, self.counting().density * (tokens + 1) / 2))
        return found

    def length(self, text: str) -> int:
        """Tokens of a prompt with its answer."""
        return len(self.tok_encode(text))

    def _loglikelihood_tokens(self, requests: Any, *args: Any, **kwargs: Any) -> Any:
        longest = max((len(context) + len(answer) for _, context, answer in requests), default=0)
        if longest > self.max_length + 1:
            raise ValueError(f"readings: a prompt has {longest} tokens, the model's context "
                             f"{self.max_length}; take fewer shots")  # fmt: skip
        return super()._loglikelihood_tokens(requests, *args, **kwargs)

    def generate_until(self, requests: Any, *args: Any, **kwargs: Any) -> Any:
        """Answers, written from prompts that leave room for them."""
        for each in requests:
            prompt, how = each.args
            longest = self.length(prompt) + how.get("max_gen_toks", self.max_gen_toks)
            if longest > self.max_length:
                raise ValueError(
                    f"readings: a prompt and its answer may have {longest} tokens, the model's "
                    f"context {self.max_length}; take fewer shots"
                )
        return super().generate_until(requests, *args, **kwargs)


class Beginning:
    """Texts that begin alike, as a task's questions do behind its worked examples: what they share
    is run once, and its keys and values serve them all. V is the vocabulary.

    Args:
        model: in evaluation mode, under what goes on from a cache to the same result.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.ids, self.logits = torch.empty(1, 0, dtype=torch.long), torch.empty(1, 0, 0)
        self.cache: Any = None

    @torch.no_grad()
    def logits_of(self, ids_1T: Tensor) -> Tensor:
        """Logits (1, T, V) of a text, to rounding what one pass over it gives."""
        shared = self.shared(ids_1T)
        if shared < LEAST:
            shared, self.cache = 0, None
        elif gone := self.ids.shape[1] - shared:
            self.cache.crop(-gone)
        found = self.model(ids_1T[:, shared:], past_key_values=self.cache, use_cache=True)
        logits = torch.cat([self.logits[:, :shared], found.logits], 1) if shared else found.logits
        self.ids, self.cache, self.logits = ids_1T, found.past_key_values, logits
        return logits

    def shared(self, ids_1T: Tensor) -> int:
        """Tokens that a text begins with as the last one did; one is left at least, to be run."""
        length = min(self.ids.shape[1], ids_1T.shape[1] - 1)
        if not length:
            return 0
        other = (self.ids[:, :length] != ids_1T[:, :length])[0].nonzero()
        return int(other[0]) if len(other) else length


def once(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each question once: of a text that several filters of a task find an answer in, by the first,
    which takes what stands where the worked examples have it."""
    return list({sample["doc_id"]: sample for sample in reversed(samples)}.values())[::-1]


def spread(documents: int, questions: int) -> list[int]:
    """Numbers of so many documents, evenly spread: the same in every run."""
    count = min(documents, questions)
    return [documents * place // count for place in range(count)]


def requests(sample: dict[str, Any]) -> list[str]:
    """Every prompt of a question with the answer that is scored after it."""
    return ["".join(part for part in each if isinstance(part, str)) for each in sample["arguments"]]


def exposure(tokens: int, window: int, sinks: int) -> float:
    """Share of the causal pairs of a text that lie beyond the window and the sinks."""
    last = max(0, tokens - window - sinks)
    return last * (last + 1) / (tokens * (tokens + 1)) if tokens else 0.0


def scores(sample: dict[str, Any]) -> dict[str, float | None]:
    """Whether the answer was right (also by length, where the task has that), and the
    log-likelihood, nats, of the right one."""
    found: dict[str, float | None] = {
        "correct": float(sample["acc"] if "acc" in sample else sample["exact_match"]),
        "correct_norm": float(sample["acc_norm"]) if "acc_norm" in sample else None,
        "right_nats": None,
    }  # fmt: skip
    answers = [each[0] if isinstance(each[0], tuple | list) else each
               for each in sample["filtered_resps"]]  # fmt: skip
    right = "0" if len(answers) == 1 else str(sample["target"])  # a text, where prompts differ
    likelihoods = all(isinstance(each, tuple | list) and len(each) == 2 for each in answers)
    if likelihoods and right.isdigit():
        found["right_nats"] = float(answers[int(right)][0])
    return found
