"""The public attention call and its choice of backend."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from focus.attention.checks import Inputs, check_arguments, check_contents, real_spans
from focus.attention.cost import choose_on_gpu, keeps_all
from focus.attention.decomposed import decomposed_attention, plan_of
from focus.attention.dense import attend, pairs_kept
from focus.attention.flex import flex_focus_attention
from focus.attention.native import call as native
from focus.attention.packed import make_packed_plan, packed_attention, packed_refusal

BACKENDS = ("auto", "dense", "decomposed", "flex", "native")


def focus_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    membership: Tensor,
    *,
    window: int = 128,
    sinks: int = 0,
    scale: float | None = None,
    key_padding_mask: Tensor | None = None,
    key_membership: Tensor | None = None,
    extra_keys: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Exact attention under the hard mask (method: "two standard FlashAttention calls").

    Args:
        query: (B, H, T, D) floating point.
        key, value: (B, Hk, T, D), Hk dividing H; repeated only where memberships are (B, H, T, K).
        membership: (B, T, K), (B, Hk, T, K) or (B, H, T, K) bool, each real token in at least one
            group.
        window: tokens of the local window, the query's own among them.
        sinks: first real tokens that are keys for everyone, counted once.
        scale: factor of the logits, > 0; None means 1/sqrt(D).
        key_padding_mask: (B, T) bool, True for real tokens; None: all are real.
        key_membership: (B, T, K) or (B, Hk, T, K), where keys are routed otherwise than queries.
        extra_keys: (B, T, E) int64, positions of a few further keys of each query, for all its
            heads; -1: none. What the mask keeps anyway counts once. None: none at all.
        backend: ``dense`` (the definition, O(T^2) memory), ``decomposed`` (group and local calls
            and a merge, O(T) memory), ``flex`` (FlexAttention), ``native`` (a compiled kernel on
            CPU, O(T) memory, :mod:`focus.attention.native`) or ``auto``: torch's own causal call
            where every pair is kept, the compiled kernel where it can compute the call, else the
            exact path that :mod:`focus.attention.cost` expects to be fastest.

    Returns:
        (B, H, T, D), differentiable in query, key and value; rows of padding queries are zero.

    Raises:
        ValueError: bad arguments (:func:`focus.attention.checks.validate`), or a backend that
            cannot compute what is asked.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend: must be one of {', '.join(BACKENDS)}, got {backend!r}")
    x = check_arguments(
        query, key, value, membership, window, sinks, scale, key_padding_mask, key_membership,
        extra_keys,
    )  # fmt: skip
    if backend == "auto" and _may_keep_all(x) and keeps_all(check_contents(x)):
        return _causal(x)
    if backend in ("auto", "native"):
        out = _native(x, backend)
        if out is not None:
            return out
    x = check_contents(x)
    if backend == "flex":
        return flex_focus_attention(x)
    if backend == "dense":
        return _dense(x)
    if query.is_cuda:
        return _on_gpu(x, backend)
    return _on_cpu(x, backend)


def _may_keep_all(x: Inputs) -> bool:
    """Whether the last token's groups, or the window, say that every pair may be kept: the others
    are counted only then."""
    if x.real is not None or x.query.is_cuda:  # there they are counted anyway, and to ask is slow
        return False
    tokens, groups = x.membership.shape[2:]
    last = [each[0, 0, -1] for each in (x.membership, x.key_membership)]
    return max(x.window, x.sinks) >= tokens or sum(int(each.sum()) for each in last) > groups


def _causal(x: Inputs) -> Tensor:
    """Every causal pair, by the call that the pretrained model makes: the same bits."""
    return scaled_dot_product_attention(
        x.query, x.key, x.value, is_causal=True, scale=x.scale, enable_gqa=True
    )


def _native(x: Inputs, backend: str) -> Tensor | None:
    """By the compiled kernel; None where ``auto`` has to take another path."""
    refusal = native.refusal(x)
    if refusal is None:
        spans = real_spans(x)
        if spans is not None:
            return native.attention(x, spans)
        refusal = "key_padding_mask: has padding between real tokens; use backend='dense'"
    if backend == "native":
        raise ValueError(refusal)
    return None


def _on_cpu(x: Inputs, backend: str) -> Tensor:
    spans = real_spans(x)
    if spans is None and backend == "decomposed":
        raise ValueError(
            "key_padding_mask: has padding between real tokens, which the decomposed backend "
            "does not support on CPU; pad on one side, or use backend='dense'"
        )
    if spans is None:
        return _dense(x)
    return decomposed_attention(x, plan_of(x, spans, lists=backend == "decomposed"))


def _on_gpu(x: Inputs, backend: str) -> Tensor:
    refusal = packed_refusal(x)
    if backend == "decomposed":
        if refusal is not None:
            raise ValueError(refusal)
        return packed_attention(x, make_packed_plan(x))
    if keeps_all(x) and x.real is None:
        return _causal(x)
    path = choose_on_gpu(x, packed=refusal is None)
    if path == "packed":
        return packed_attention(x, make_packed_plan(x))
    return flex_focus_attention(x) if path == "flex" else _dense(x)


def _dense(x: Inputs) -> Tensor:
    kept = pairs_kept(x.membership, x.key_membership, x.window, x.sinks, x.real, x.extra)
    return attend(x.query, x.key, x.value, x.scale, kept=kept)
