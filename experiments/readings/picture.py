"""Which keys a head's queries see, as letters that a figure is drawn from: the groups of every
token as a key and as a query, and the keys that it meets word for word."""

from __future__ import annotations

from experiments.readings.information import LETTERS
from experiments.readings.subject import Condition, Rows, Subject
from experiments.settings import Picture
from experiments.view.capture import Groups, capture

AXES = ("texts", "conditions")


def rows(subject: Subject, reading: Picture, name: str, how: Condition) -> Rows:
    """A row a document and layer, of its first head."""
    found = []
    mask = subject.method.mask(subject.cell.aim(how.budget))
    for which, (ids,) in subject.documents(name, reading):
        seen = capture(subject.model, subject.tokenizer, ids, which["document"], str(how),
                       reading.layers, **mask)  # fmt: skip
        further = ";".join(" ".join(map(str, each)) for each in seen["further"])
        for layer in seen["layers"]:
            keys = layer["keys"][0]
            own = {"layer": layer["index"], "head": 0, "tokens": len(ids), "keys": letters(keys),
                   "queries": letters(layer["queries"][0] if layer["queries"] else keys),
                   "further": further}  # fmt: skip
            found.append(subject.row(how, **which, **own))
    return found


def letters(groups: Groups) -> str:
    """A letter a group, of each token as many, one token after the other."""
    return "".join(LETTERS[group] for token in groups for group in token)
