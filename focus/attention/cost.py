"""Which exact path is fastest on CPU: a count of the work of each.

The unit is one query-key pair of one query head in a long causal FlashAttention call. The constants
are ratios measured on CPU (2 cores, AVX-512, torch 2.13; float32 and bfloat16 agree within a few
percent): what a path costs beside its pairs. Only the order of two costs matters, and where the
costs are close so are the times.

Shape suffixes: B batch, T tokens, K groups, S patterns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from focus.attention.checks import Inputs
from focus.attention.local import block_queries
from focus.attention.plan import patterns
from focus.attention.rows import stripe_rows
from focus.attention.stairs import stair_rows

CALL = 25_000.0  # one kernel call with what surrounds it
ROW = 60.0  # gathering and merging one query of one head
KEY = 30.0  # gathering one key and value of one key head
MASKED = 1.08  # a pair under an additive mask
SMALL = 1.45  # a pair in the small blocks of the local call
MASK = 0.6  # making one entry of a stripe's mask
KEY_BLOCK = 256.0  # keys beyond the diagonal that a causal call computes for each query, on average
MOST_PATTERNS = 128


def keeps_all(x: Inputs) -> bool:
    """Whether every causal pair of real tokens is kept: a wide window, or groups that must meet."""
    tokens, groups = x.membership.shape[2:]
    if x.window >= tokens or x.sinks >= tokens:
        return True
    queries, keys = x.membership.sum(-1), x.key_membership.sum(-1)
    if x.real is not None:
        padding = ~x.real[:, None, :]
        queries, keys = queries.masked_fill(padding, groups), keys.masked_fill(padding, groups)
    return int(queries.min()) + int(keys.min()) > groups


def choose(x: Inputs) -> tuple[str, tuple[Tensor, Tensor] | None]:
    """The cheaper of ``groups`` and ``patterns`` lists, or ``stripes``; patterns where counted."""
    batch, routings, tokens, _ = x.membership.shape
    heads = x.query.shape[1] // routings
    key_heads = x.key.shape[1] // routings
    costs = {"stripes": batch * routings * _stripes(tokens, heads)}
    local = batch * routings * _local(tokens, heads, x.window)
    if local >= costs["stripes"]:
        return "stripes", None
    costs["groups"] = local + _groups(x, heads, key_heads)
    found = None
    if _may_repeat(x):
        found = patterns(x.membership.flatten(0, 1), MOST_PATTERNS)
    if found is not None:
        costs["patterns"] = local + _patterns(x, found, heads, key_heads)
    return min(costs, key=costs.__getitem__), found


def choose_lists(x: Inputs) -> tuple[str, tuple[Tensor, Tensor] | None]:
    """As :func:`choose`, without the stripes."""
    routings = x.membership.shape[1]
    heads, key_heads = x.query.shape[1] // routings, x.key.shape[1] // routings
    found = patterns(x.membership.flatten(0, 1), MOST_PATTERNS) if _may_repeat(x) else None
    if found is None or _groups(x, heads, key_heads) <= _patterns(x, found, heads, key_heads):
        return "groups", None
    return "patterns", found


def _may_repeat(x: Inputs) -> bool:
    return int(x.membership.sum(-1).max()) > 1 and (
        x.sinks > 0 or int(x.key_membership.sum(-1).max()) > 1
    )


def _stripes(tokens: int, heads: int) -> float:
    rows = stripe_rows(tokens)
    pairs = tokens * (tokens + rows) / 2
    return pairs * (MASKED * heads + MASK) + CALL * tokens / rows


def _local(tokens: int, heads: int, window: int) -> float:
    return SMALL * heads * tokens * (block_queries(window) + window) + CALL


def _groups(x: Inputs, heads: int, key_heads: int) -> float:
    queries = x.membership.sum(2).flatten(0, 1).double()
    codes = torch.ones(queries.shape[-1])
    if _may_repeat(x):
        # Group g is told apart from those before it by as many code dimensions, eight at a time.
        codes += torch.arange(queries.shape[-1]).add(7).div(8, rounding_mode="floor") * (
            8 / x.query.shape[-1]
        )
    if x.separate_keys:
        keys = x.key_membership.sum(2).flatten(0, 1).double()
        return float((_staircase(queries, keys, heads, key_heads) * codes).sum())
    causal = heads * queries * (queries / 2 + (queries / 2).clamp(max=KEY_BLOCK))
    moved = (ROW * heads + KEY * key_heads) * queries
    return float(((causal + moved) * codes + 2 * CALL * (queries > 0)).sum())


def _patterns(x: Inputs, found: tuple[Tensor, Tensor], heads: int, key_heads: int) -> float:
    pattern_SK, which = found
    keys_BTK = x.key_membership.flatten(0, 1)
    total = 0.0
    for which_T, keys_TK in zip(which, keys_BTK, strict=True):
        queries = torch.bincount(which_T[which_T >= 0], minlength=len(pattern_SK)).double()
        keys = ((keys_TK.float() @ pattern_SK.float().T) > 0).sum(0).double()
        total += float(_staircase(queries, keys, heads, key_heads).sum())
    return total


def _staircase(queries: Tensor, keys: Tensor, heads: int, key_heads: int) -> Tensor:
    rows = torch.tensor([stair_rows(int(n)) for n in queries.flatten()]).view(queries.shape)
    pairs = queries * keys / 2 + rows.clamp(max=queries) * keys / 2
    moved = ROW * heads * queries + KEY * key_heads * keys
    return MASKED * heads * pairs + moved + 1.5 * CALL * (queries / rows).ceil()
