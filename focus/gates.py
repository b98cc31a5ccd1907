"""Training gates: how soft assignments weigh distant pairs. Every pair is computed, O(T^2) time and
O(T) memory.

- ``log``: a distant logit plus log(affinity), so that its weight is multiplied by the affinity: the
  hard mask in the limit of sharp assignments.
- ``straight_through``: the hard mask forwards, the gradient of ``log`` backwards.
- ``eq2``: the paper's, :func:`focus.paper.eq2_scores`.

Shape suffixes: B batch, T tokens, H query heads, Hk key heads, Hq routings of queries (1, Hk or H),
Hr routings of keys (1 or Hk), D head dimension, K groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

from focus.attention import focus_attention
from focus.attention.checks import as_autocast
from focus.attention.train.blocks import wide_dtype
from focus.attention.train.operator import gated_attention_op
from focus.config import GATES
from focus.groups import Assignments, top_k_groups

MOST = 1 - 2**-20  # of an assignment: the logarithm of what is left of it stays finite
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def gated_attention(
    query_BHTD: Tensor,
    key_BHkTD: Tensor,
    value_BHkTD: Tensor,
    assignments: Assignments,
    *,
    gate: str,
    window: int,
    sinks: int,
    top_k: int,
    key_top_k: int,
    probes: int,
    hard_keys: bool,
    scale: float | None = None,
    real: Tensor | None = None,
    limit: int | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Causal attention whose distant pairs count by a training gate.

    A pair is distant if the query comes ``window`` tokens or more after the key and the key is no
    sink; other pairs count as they always do. Under ``torch.autocast`` query, key and value are
    cast as torch's own attention casts them; assignments, logits and softmax stay float32 (float64
    for float64 inputs).

    Args:
        query_BHTD, key_BHkTD, value_BHkTD: one floating dtype, outside autocast; Hk divides H.
        assignments: of queries (B, Hq, T, K) and of keys (B, Hr, T, K).
        gate: one of :data:`focus.config.GATES`.
        window: tokens of the local window, the query's own among them.
        sinks: first real tokens that are keys for everyone.
        top_k, key_top_k: groups of a query and of a key in ``straight_through``'s hard mask; of
            ``key_top_k`` also ``hard_keys`` takes notice.
        probes, hard_keys: see :func:`gated_assignments`.
        scale: factor of the logits, > 0; None means 1/sqrt(D).
        real: (B, T) bool, False for padding; None: all are real.
        limit: tokens of a model's own sliding window, the query's own among them; None: no limit.
        softcap: logits become ``softcap * tanh(logit / softcap)`` before the gate (Gemma-2).
        dropout: probability with which a weight is dropped.

    Returns:
        (B, H, T, D) in the value's dtype (autocast's, under it); rows of padding are zero.
        Differentiable once, in the first three arguments and the assignments.

    Raises:
        ValueError: which argument is wrong, and what to do.
    """
    tensors = as_autocast(query_BHTD, key_BHkTD, value_BHkTD)
    scale = query_BHTD.shape[-1] ** -0.5 if scale is None else float(scale)
    _check_tensors(*tensors, assignments)
    _check_padding(tensors[0], real)
    _check_numbers(gate, window=window, sinks=sinks, limit=limit, scale=scale, softcap=softcap,
                   dropout=dropout)  # fmt: skip
    # Drawn on CPU, where checkpointing restores it and to read it makes no GPU wait.
    seed = torch.randint(2**62, (), device="cpu") if dropout else None
    rule = (window, sinks, scale, limit, softcap, dropout)
    with torch.autocast(tensors[0].device.type, enabled=False):
        wide = wide_dtype(tensors[0].dtype)
        groups = Assignments(*(each.to(wide) for each in assignments))
        soft = gated_assignments(groups, probes=probes, hard_keys=hard_keys, key_top_k=key_top_k)
        kind = "log" if gate == "straight_through" else gate
        out = gated_attention_op(*tensors, *soft, real, None, seed, kind, *rule)[0]
        if gate == "straight_through":
            masks = real, None, seed
            hard = _hard(tensors, groups, top_k, key_top_k, masks, rule)
            out = hard + (out - out.detach())
        return out.to(tensors[2].dtype)


def gated_assignments(assignments: Assignments, *, probes: int, hard_keys: bool, key_top_k: int
                      ) -> Assignments:  # fmt: skip
    """Assignments as gates count them: a query's share of a group as the chance that one of
    ``probes`` draws hits it; keys, where ``hard_keys``, in the groups they join alone, with the
    gradient of their soft ones.

    Args:
        assignments: of queries (B, Hq, T, K) and of keys (B, Hr, T, K), float32 or wider.
        probes: draws; 1 leaves queries as they are.
        hard_keys: whether keys count in their ``key_top_k`` largest groups alone.
        key_top_k: groups that a key joins.

    Returns:
        Shapes and dtypes as they were; rows need not sum to one any more.

    Raises:
        ValueError: several probes of hard keys that join several groups.
    """
    query, key = assignments
    if probes > 1:
        query = -torch.expm1(probes * torch.log1p(-query.clamp(max=MOST)))
    if hard_keys and probes > 1 and key_top_k > 1:
        raise ValueError(
            f"probes: {probes} probes of hard keys need keys of one group, and key_top_k is "
            f"{key_top_k}; train with top_k = 1 or probe = 'multi_probe'"
        )
    if hard_keys:
        joined = top_k_groups(key.detach(), key_top_k)
        key = joined.to(key.dtype) + key - key.detach()
    return Assignments(query, key)


@torch.no_grad()
def _hard(tensors: tuple[Tensor, Tensor, Tensor], groups: Assignments, top_k: int, key_top_k: int,
          masks: tuple[Tensor | None, ...],
          rule: tuple[int, int, float, int | None, float | None, float]) -> Tensor:  # fmt: skip
    """Attention under the hard mask, by its fast path where there is nothing else to heed."""
    window, sinks, scale, limit, softcap, _ = rule
    query, key = top_k_groups(groups.query, top_k), top_k_groups(groups.key, key_top_k)
    unlimited = limit is None or limit >= tensors[0].shape[2]
    if unlimited and softcap is None and all(each is None for each in masks):
        return focus_attention(*tensors, query, key_membership=key, window=window, sinks=sinks,
                               scale=scale)  # fmt: skip
    wide = groups.query.dtype
    return gated_attention_op(*tensors, query.to(wide), key.to(wide), *masks, "hard", *rule)[0]


def _check_tensors(query: Tensor, key: Tensor, value: Tensor, assignments: Assignments) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() != 4 or x.dtype not in FLOATS:
            raise ValueError(
                f"{name}: must be floating point of shape (batch, heads, tokens, head_dim), got "
                f"{x.dtype} of shape {tuple(x.shape)}"
            )
        if x.dtype != query.dtype or x.device != query.device:
            raise ValueError(
                f"{name}: is {x.dtype} on {x.device} where query is {query.dtype} on "
                f"{query.device}; bring all three to one dtype and device, or use torch.autocast"
            )
    if key.shape != value.shape:
        raise ValueError(f"value: shape {tuple(value.shape)} differs from key's {tuple(key.shape)}")
    batch, heads, tokens, dim = query.shape
    if not (key.shape[0] == batch and key.shape[2:] == (tokens, dim)) or heads % key.shape[1]:
        raise ValueError(
            f"key: {tuple(key.shape)} does not fit queries {tuple(query.shape)}: batch, tokens and "
            "head_dim must be equal, and key heads divide query heads"
        )
    of_queries, of_keys = assignments
    for name, x, allowed in (("assignments.query", of_queries, (1, key.shape[1], heads)),
                             ("assignments.key", of_keys, (1, key.shape[1]))):  # fmt: skip
        shape = tuple(x.shape)
        fits = len(shape) == 4 and (shape[0], shape[2]) == (batch, tokens) and shape[1] in allowed
        if not fits or shape[3] != of_queries.shape[-1]:
            raise ValueError(
                f"{name}: must have shape ({batch}, {' or '.join(map(str, sorted(set(allowed))))}, "
                f"{tokens}, groups), as many groups for queries as for keys, got {shape}"
            )


def _check_padding(query: Tensor, real: Tensor | None) -> None:
    expected = (query.shape[0], query.shape[2])
    if real is not None and (real.dtype != torch.bool or tuple(real.shape) != expected):
        raise ValueError(
            f"real: must be bool of shape {expected}, got {real.dtype} of shape {tuple(real.shape)}"
        )


def _check_numbers(gate: str, *, window: int, sinks: int, limit: int | None, scale: float,
                   softcap: float | None, dropout: float) -> None:  # fmt: skip
    if gate not in GATES:
        raise ValueError(f"gate: must be one of {', '.join(GATES)}, got {gate!r}")
    for name, number, least in (("window", window, 1), ("sinks", sinks, 0), ("limit", limit, 1)):
        if number is not None and number < least:
            raise ValueError(f"{name}: must be a whole number >= {least}, got {number}")
    for name, size in (("scale", scale), ("softcap", softcap)):
        if size is not None and not 0 < size < float("inf"):
            raise ValueError(f"{name}: must be finite and > 0, got {size}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout: must be at least 0 and below 1, got {dropout}")
