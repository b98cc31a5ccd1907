"""Keys found word for word, beside the window and the sinks: what needs no router at all."""

from __future__ import annotations

from experiments.methods.window import Window


class Ngram(Window):
    """The window as it stands and the further keys, a few a query, whatever the text's length: how
    many there are, the text says."""

    name = "ngram"
    takes = "nothing"
