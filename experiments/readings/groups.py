"""What groups there are under the training gate: how even, how sure, by layer (paper: Section 5,
Table 9)."""

from __future__ import annotations

from torch import nn

from experiments.methods.focus import balance_statistics
from experiments.readings.subject import SOFT, Rows, Subject
from experiments.settings import Groups

AXES = ("texts",)


def rows(subject: Subject, reading: Groups, name: str) -> Rows:
    """A row a document and layer; of routers that balance keys alone, the keys'."""
    found = []
    for which, windows in subject.documents(name):
        for layer, (logits, _) in enumerate(subject.routed(windows)):
            keys = logits[:, -1]
            members = nn.functional.one_hot(keys.argmax(-1), keys.shape[-1]).bool()
            sure = float(keys.softmax(-1).amax(-1).mean())
            own = {"layer": layer, **balance_statistics(members), "confidence": sure}
            found.append(subject.row(SOFT, **which, **own))
    return found
