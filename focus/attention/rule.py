"""What the hard mask of one layer keeps, as a cache knows it."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """What the hard mask keeps, and how groups were found.

    window, sinks: as in :func:`focus.dense_attention`; limit: the model's own sliding window, or
    None; groups: K; query_groups, key_groups: how many a query and a key belong to at most;
    balance: of the routers; ngrams: whether token ids are kept for n-grams; router, learnt: which
    one gave the groups, or one that it is a copy of, and what it had learnt by then (None: not
    known); fewest_query_groups: how many a query belongs to at least (None: all alike).
    """

    window: int
    sinks: int
    limit: int | None
    groups: int
    query_groups: int
    key_groups: int
    balance: str = "causal"
    ngrams: bool = False
    router: str = ""
    fewest_query_groups: int | None = None
    learnt: str | None = None

    @property
    def of_keys(self) -> Rule:
        """What is the same as long as a cache goes on: queries may look into more groups later, or
        fewer, since keys are filed by their own."""
        return self._replace(query_groups=0, fewest_query_groups=None)

    def files_as(self, other: Rule) -> bool:
        """Whether keys that one has filed are those that the other would have."""
        one, two = self.of_keys, other.of_keys
        if None in (one.learnt, two.learnt):
            two = two._replace(learnt=one.learnt)
        return one == two

    @property
    def reach(self) -> int:
        """Tokens up to the query's own that it reads whatever the groups."""
        fewest = self.fewest_query_groups
        fewest = self.query_groups if fewest is None else fewest
        meet = fewest + self.key_groups > self.groups  # any two sets share a group
        return 2**62 if meet else self.window
