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
from focus.attention.dtypes import as_autocast
from focus.attention.train.operator import gated_attention_op
from focus.groups import Assignments, top_k_groups

MOST = 1 - 2**-20  # of an assignment: the logarithm of what is left of it stays finite


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
    """Causal attention whose distant pairs count by a training gate; arguments are not checked.

    A pair is distant if the query comes ``window`` tokens or more after the key and the key is no
    sink. Under ``torch.autocast`` query, key and value are cast as torch's own attention casts
    them; assignments, logits and softmax stay float32 (float64 for float64 inputs; on CUDA in half
    precision weights are rounded before their products with values).

    Args:
        query_BHTD, key_BHkTD, value_BHkTD: one floating dtype, outside autocast; Hk divides H.
        assignments: of queries (B, Hq, T, K) and of keys (B, Hr, T, K).
        gate, window, sinks, top_k, key_top_k, probes, hard_keys: as in
            :class:`focus.FocusConfig`; ``top_k`` is of ``straight_through``'s hard mask alone.
        scale: factor of the logits, > 0; None means 1/sqrt(D).
        real: (B, T) bool, False for padding; None: all are real.
        limit: tokens of a model's own sliding window, the query's own among them; None: no limit.
        softcap: logits become ``softcap * tanh(logit / softcap)`` before the gate (Gemma-2).
        dropout: probability with which a weight is dropped.

    Returns:
        (B, H, T, D) in the value's dtype (autocast's, under it); rows of padding are zero.
        Differentiable once, in the first three arguments and the assignments.
    """
    tensors = as_autocast(query_BHTD, key_BHkTD, value_BHkTD)
    scale = query_BHTD.shape[-1] ** -0.5 if scale is None else float(scale)
    # Drawn on CPU, where checkpointing restores it and to read it makes no GPU wait.
    seed = torch.randint(2**62, (), device="cpu") if dropout else None
    rule = (window, sinks, scale, limit, softcap, dropout)
    with torch.autocast(tensors[0].device.type, enabled=False):
        wide = torch.promote_types(tensors[0].dtype, torch.float32)
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
    """Assignments (float32 or wider) as gates count them: a query's share of a group as the chance
    that one of ``probes`` draws hits it; keys, where ``hard_keys``, in their ``key_top_k`` largest
    groups alone, with the gradient of their soft ones. Rows need not sum to one any more. Several
    probes of hard keys that join several groups are refused."""
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
