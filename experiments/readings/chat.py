"""How far a model's answers are from those that it gave before it was trained or masked.

The untrained model answers greedily; the other one reads the same answers. What the two expect at
each token of them is compared by the divergence KL(untrained || other). Questions shorter than the
window are out of a mask's reach: after a pasted text they are not.

Shapes: P tokens of the prompt, A of the answer, V of the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.chat import asking
from experiments.chat.questions import QUESTIONS
from experiments.readings.subject import Condition, Rows, Subject
from experiments.settings import Chat

AXES = ("before", "conditions")


def rows(subject: Subject, reading: Chat, length: int, how: Condition) -> Rows:
    """A row a question: nats a token of the divergence, and percent of the tokens that both models
    hold likeliest."""
    (name,) = reading.texts
    pages = subject.documents(name)
    which = subject.cell.model, subject.cell.dtype
    first = asking.untrained(*which).to(subject.model.device)
    found = []
    for number, question in enumerate(QUESTIONS[: reading.questions]):
        page = pages[number % len(pages)][1][0, :length]
        prompt = asking.prompt(subject.tokenizer, question, page)
        ids = asking.answered(*which, tuple(prompt[0].tolist()), reading.answer)
        with subject.entered(how) as counting:
            own = compared(logits_of(first, ids, prompt.shape[1]),
                           logits_of(subject.model, ids, prompt.shape[1]))  # fmt: skip
            pairs = counting()
        found.append(subject.row(
            how, texts=name, document=str(number), before=length,
            prompt=prompt.shape[1], tokens=ids.shape[1] - prompt.shape[1], **own,
            distant_density=pairs.distant_density if pairs.distant else 1.0,
        ))  # fmt: skip
    return found


@torch.no_grad()
def logits_of(model: torch.nn.Module, ids: Tensor, start: int) -> Tensor:
    """What a model expects of the answer's tokens, float32 (A, V)."""
    answer = ids.shape[1] - start
    logits: Tensor = model(ids, use_cache=False, logits_to_keep=answer + 1).logits
    return logits[0, :-1].float()


def compared(first_AV: Tensor, other_AV: Tensor) -> dict[str, float]:
    """``divergence``: KL(first || other), mean over the tokens, nats; ``agreed``: percent."""
    first, other = first_AV.log_softmax(-1).double(), other_AV.log_softmax(-1).double()
    nats = (first.exp() * (first - other)).sum(-1)
    same = first_AV.argmax(-1) == other_AV.argmax(-1)
    return {"divergence": float(nats.mean()), "agreed": 100 * float(same.double().mean())}
