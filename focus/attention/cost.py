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
from focus.attention.rows import SHORT, STRIPE_ROWS
from focus.attention.stairs import stair_rows

CALL = 60_000.0  # one kernel call with what surrounds it
ROW = 60.0  # gathering and merging one query of one head
KEY = 30.0  # gathering one key and value of one key head
FEW, MANY = 1.2, 1.05  # a masked pair in calls of fewer queries than STRIPE_ROWS, and of as many
SMALL = 1.45  # a pair in the small blocks of the local call
STRIPE = 1.2  # a pair of a stripe: MANY, and reading a mask that is nowhere empty
LISTS = 1.25  # what lists cost beside what is counted here: gathers, merges, cold memory
MASK = 0.4  # making one entry of a stripe's mask
KEY_BLOCK = 256.0  # keys beyond the diagonal that a causal call computes for each query, on average
MOST_PATTERNS = 128
GPU_SHORT = 2048
GPU_DENSE = 0.7  # share of pairs above which packed lists with codes do not pay
ALWAYS_STRIPES = SHORT  # tokens up to which counting would take longer than it could save
SAMPLE = 256  # tokens from which the density is guessed

Found = tuple[Tensor, Tensor] | None


def keeps_all(x: Inputs) -> bool:
    """Whether every causal pair of real tokens is kept: a wide window, or groups that must meet."""
    tokens, groups = x.membership.shape[2:]
    if x.window >= tokens or x.sinks >= tokens:
        return True
    return x.fewest > groups


def choose(x: Inputs) -> tuple[str, Found]:
    """The cheapest of ``stripes`` and the lists; the patterns of the queries where they count."""
    batch, routings, tokens, _ = x.membership.shape
    if tokens <= ALWAYS_STRIPES:
        return "stripes", None
    heads = x.query.shape[1] // routings
    stripes = batch * _stripes(tokens, heads, routings)
    local = batch * routings * _local(tokens, heads, x.window)
    if LISTS * (local + _least(x, heads)) >= stripes:
        return "stripes", patterns(x.membership.flatten(0, 1), MOST_PATTERNS)
    path, cost, found = _lists(x)
    return (path if LISTS * (local + cost) < stripes else "stripes"), found


def choose_lists(x: Inputs) -> tuple[str, Found]:
    """As :func:`choose`, without the stripes."""
    path, _, found = _lists(x)
    return path, found


def choose_on_gpu(x: Inputs, packed: bool) -> str:
    """``packed`` calls, ``flex`` or the ``dense`` mask: by sizes, not yet by measurements.

    A packed call does not pay below some thousand tokens, where gathering and launching take longer
    than full attention; there the mask is small and the definition's own products do.
    """
    tokens = x.membership.shape[2]
    if tokens <= GPU_SHORT:
        return "dense"
    heads = x.query.shape[1] // x.membership.shape[1]
    density = _least(x, heads) / (heads * x.membership[:, :, 0, 0].numel() * tokens * tokens / 2)
    return "packed" if packed and density < GPU_DENSE else "flex"


def _lists(x: Inputs) -> tuple[str, float, Found]:
    routings = x.membership.shape[1]
    heads, key_heads = x.query.shape[1] // routings, x.key.shape[1] // routings
    repeats = int(x.membership.sum(-1).max()) > 1
    costs = {"stairs": _by_group(x, repeats, heads, key_heads, False)}
    if not x.separate_keys:
        costs["aligned"] = _by_group(x, repeats, heads, key_heads, True)
    found = patterns(x.membership.flatten(0, 1), MOST_PATTERNS) if repeats else None
    if found is not None:
        costs["patterns"] = _by_pattern(x, found, heads, key_heads)
    path = min(costs, key=costs.__getitem__)
    return path, costs[path], found


def _least(x: Inputs, heads: int) -> float:
    """Less than any lists cost: the pairs that meet, guessed from a sample of tokens."""
    batch, routings, tokens, _ = x.membership.shape
    step = max(1, tokens // SAMPLE)
    queries, keys = x.membership[:, :, ::step], x.key_membership[:, :, step // 2 :: step]
    density = float(((queries.float() @ keys.float().transpose(-1, -2)) > 0).float().mean())
    return heads * batch * routings * tokens * (tokens * density / 2 + ROW)


def _stripes(tokens: int, heads: int, routings: int) -> float:
    rows = STRIPE_ROWS
    pairs = tokens * (tokens + rows) / 2
    return routings * pairs * (STRIPE * heads + MASK) + CALL * tokens / rows


def _local(tokens: int, heads: int, window: int) -> float:
    return SMALL * heads * tokens * (block_queries(window) + window) + CALL


def _by_group(x: Inputs, repeats: bool, heads: int, key_heads: int, aligned: bool) -> float:
    queries = x.membership.sum(2).flatten(0, 1).double()
    keys = x.key_membership.sum(2).flatten(0, 1).double()
    codes = torch.ones(queries.shape[-1])
    if repeats:
        # Group g is told apart from those before it by as many code dimensions, eight at a time.
        eights = torch.arange(queries.shape[-1]).add(7).div(8, rounding_mode="floor")
        codes += eights * (8 / x.query.shape[-1])
    if not aligned:
        return float((_staircase(queries, keys, heads, key_heads) * codes).sum())
    causal = heads * queries * (queries / 2 + (queries / 2).clamp(max=KEY_BLOCK))
    moved = (ROW * heads + KEY * key_heads) * queries
    return float(((causal + moved) * codes + 2 * CALL * (queries > 0)).sum())


def _by_pattern(x: Inputs, found: tuple[Tensor, Tensor], heads: int, key_heads: int) -> float:
    pattern_SK, which = found
    total = 0.0
    for which_T, keys_TK in zip(which, x.key_membership.flatten(0, 1), strict=True):
        queries = torch.bincount(which_T[which_T >= 0], minlength=len(pattern_SK)).double()
        keys = ((keys_TK.float() @ pattern_SK.float().T) > 0).sum(0).double()
        total += float(_staircase(queries, keys, heads, key_heads).sum())
    return total


def _staircase(queries: Tensor, keys: Tensor, heads: int, key_heads: int) -> Tensor:
    rows = torch.tensor([float(stair_rows(int(n))) for n in queries.flatten()])
    rows = torch.minimum(rows.view(queries.shape).double(), queries)
    pairs = (queries + rows) * keys / 2
    moved = ROW * heads * queries + KEY * key_heads * keys
    pairs *= torch.where(rows < STRIPE_ROWS, FEW, MANY)
    return heads * pairs + moved + CALL * (queries / rows.clamp(min=1)).ceil()
