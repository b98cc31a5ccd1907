"""The public attention call and its choice of backend."""

from __future__ import annotations

from torch import Tensor

from focus.attention import varlen
from focus.attention.checks import Inputs, check_arguments
from focus.attention.dense import dense_of
from focus.attention.operator import attention, causal, keeps_all
from focus.attention.triton import call as triton

BACKENDS = ("auto", "dense", "stripes", "native", "triton", "varlen", "flash-attn")


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

    ``backend="auto"``: where every pair is kept, torch's own causal attention (not in code that
    torch.compile traces); else the compiled kernel on CPU and Triton's in half precision on CUDA
    (variable-length FlashAttention where there is no Triton); and stripes of rows wherever these
    cannot compute the call.

    Args:
        query: (B, H, T, D) floating point. Under autocast all three are cast to its dtype.
        key, value: (B, Hk, T, D), Hk dividing H.
        membership: (B, T, K), (B, Hk, T, K) or (B, H, T, K) bool, each real token in at least one
            group.
        window: tokens of the local window, the query's own among them.
        sinks: first real tokens that are keys for everyone, counted once.
        scale: factor of the logits, > 0; None means 1/sqrt(D).
        key_padding_mask: (B, T) bool, True for real tokens; None: all are real.
        key_membership: (B, T, K) or (B, Hk, T, K), where keys are routed otherwise than queries.
        extra_keys: (B, T, E) int64, positions of a few further keys of each query, for all its
            heads; -1: none. What the mask keeps anyway counts once. None: none at all.
        backend: ``auto``; ``dense``, the definition, O(T^2) memory, twice differentiable;
            ``stripes``, masked calls of torch's attention for any device and dtype, O(T) memory;
            ``native``, the compiled kernel on CPU; ``triton``, kernels for CUDA (of long texts
            forward alone: the backward pass is ``varlen``'s); ``varlen``, torch's variable-length
            FlashAttention on CUDA; ``flash-attn``, that of the package of this name.

    Returns:
        (B, H, T, D), differentiable in query, key and value; rows of padding queries are zero.

    Raises:
        ValueError: bad arguments, or a backend that cannot compute what is asked. Values (NaN,
            empty memberships) are looked at on CPU only.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend: must be one of {', '.join(BACKENDS)}, got {backend!r}")
    x = check_arguments(
        query, key, value, membership, window, sinks, scale, key_padding_mask, key_membership,
        extra_keys,
    )  # fmt: skip
    return attention_of(x, backend)


def attention_of(x: Inputs, backend: str) -> Tensor:
    """:func:`focus_attention` of checked arguments."""
    if backend == "dense":
        return dense_of(x)
    if backend in ("varlen", "flash-attn"):
        why = varlen.refusal(x, backend)
    else:
        why = triton.refusal(x) if backend == "triton" else None
    if why is not None:
        raise ValueError(why)
    if backend == "auto" and not x.on_cpu and x.real is None and keeps_all(x):
        return causal(x.query, x.key, x.value, x.scale)
    return attention(x, backend)
