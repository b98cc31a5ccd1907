"""Long-context tasks, question by question: what the right answer costs, and whether it is found.

An answer is found where every token of it is the likeliest one after the prompt and the right
answers before it: then greedy decoding, put on that road, writes it. RULER lets a model write
freely and looks for the answer in what it wrote, so its scores are not these.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from experiments.readings.subject import Condition, Rows, Subject
from experiments.ruler import tasks
from experiments.ruler.tasks import Prompt
from experiments.settings import Ruler

AXES = ("tasks", "lengths", "conditions")


def rows(subject: Subject, reading: Ruler, task: str, length: int, how: Condition) -> Rows:
    """A row a question: ``found``, the share of its answers that are; ``nll``, nats of all
    answers' tokens together."""
    rows = []
    with subject.entered(how) as counting:
        for number in range(reading.questions):
            prompt = tasks.prompt(task, number, length, subject.tokenizer)
            losses, likeliest = scored(subject, prompt)
            mark = hashlib.sha256(str(prompt.ids).encode()).hexdigest()[:12]
            pairs = counting()
            rows.append(subject.row(
                how, texts=task, document=str(number), sha=mark,
                length=length, prompt=len(prompt.ids), needle_distance=prompt.distance,
                nll=sum(float(each.sum()) for each in losses),
                tokens=sum(len(each) for each in losses),
                found=sum(bool(each.all()) for each in likeliest) / len(likeliest),
                distant_density=pairs.distant_density if pairs.distant else 1.0,
            ))  # fmt: skip
    return rows


@torch.no_grad()
def scored(subject: Subject, prompt: Prompt) -> tuple[list[Tensor], list[Tensor]]:
    """Nats (float64) of each answer's tokens, and whether each token is the likeliest."""
    ids = torch.tensor([prompt.ids], device=subject.model.device)
    kept = len(prompt.ids) - prompt.answers[0][0] + 1
    logits = subject.model(ids, use_cache=False, logits_to_keep=kept).logits[0, :-1].float()
    wanted = ids[0, -logits.shape[0] :]
    nats = torch.nn.functional.cross_entropy(logits, wanted, reduction="none").double()
    right = logits.argmax(-1) == wanted
    first = prompt.answers[0][0]
    places = [slice(start - first, end - first) for start, end in prompt.answers]
    return [nats[place] for place in places], [right[place] for place in places]
