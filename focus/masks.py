"""What transformers' attention masks say, in O(T) wherever the mask is plain causal.

Shape suffixes: B batch, Tq queries, Tk keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    causal_mask_function,
    sdpa_mask,
)

from focus.call import alive


def focus_mask(**asked: Any) -> Tensor | None:
    """Mask builder for transformers' ``AttentionMaskInterface``, which calls it by keywords: see
    transformers' ``sdpa_mask``.

    Returns:
        In ``full`` mode, and for layers that stay local, what the model's own implementation asks
        for; outside a forward pass what eager attention does. Else None where the mask is causal
        and every key is real; (B, 1, 1, Tk) bool, True for real keys, where it is causal with
        padding; otherwise the (B, 1, Tq, Tk) bool mask of the sdpa path, which :func:`read_mask`
        checks. A model's own sliding window is not in the mask: layers that have one are told its
        size.
    """
    mask_function = one_text(asked.get("mask_function", causal_mask_function))
    call, sliding = alive(), is_sliding(mask_function)
    # Outside a pass (`generate` with a static cache) nobody knows the mode: numbers to be added to
    # the logits are a mask to every implementation.
    own_name = "eager" if call is None else call.implementation
    if call is None or call.mode.name == "full" or (sliding and call.interleaved):
        own: Tensor | None = ALL_MASK_ATTENTION_FUNCTIONS[own_name](**asked)
        return own
    if mask_function is causal_mask_function or sliding:
        real, batch = asked.get("attention_mask"), asked.get("batch_size")
        return _padding(real, batch, asked["kv_length"], asked.get("kv_offset", 0))
    return sdpa_mask(
        **{**asked, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    )


def one_text(mask_function: Callable[..., Any]) -> Callable[..., Any]:
    """What packed sequences have wrapped, where there is one text a row: compiled code always wraps
    it, as if there were several."""
    other, packed = _parts(mask_function)
    if _maker(other) == "packed_sequence_mask_function":  # so in transformers 5.23
        other, packed = packed, other
    if _maker(packed) != "packed_sequence_mask_function":
        return mask_function
    if bool(packed.__closure__[0].cell_contents.any()):
        return mask_function
    remapped = _maker(other) == "remap_positions_for_packed_sequence"  # not in 5.17
    found: Callable[..., Any] = other.__closure__[0].cell_contents if remapped else other
    return found


def _parts(mask_function: Callable[..., Any]) -> tuple[Any, Any]:
    """The two functions of which a mask function is the intersection; None for what is none."""
    cells = getattr(mask_function, "__closure__", None) or ()
    parts = [cell.cell_contents for cell in cells]
    if len(parts) != 1 or not isinstance(parts[0], tuple) or len(parts[0]) != 2:
        return None, None
    return parts[0]


def is_sliding(mask_function: Callable[..., Any]) -> bool:
    """Whether this is transformers' causal mask with a sliding window and nothing else.

    It is a closure over [sliding_window_overlay, causal_mask_function]. Anything not recognised
    takes the explicit mask, so a wrong 'no' only costs memory.
    """
    window, other = _parts(mask_function)
    return other is causal_mask_function and _maker(window) == "sliding_window_overlay"


def _maker(function: Any) -> str:
    """The function that a closure was made in; "" of what is none."""
    # Compiled by torch 2.15, getattr gives its default for a name that is there.
    return function.__qualname__.partition(".")[0] if isinstance(function, FunctionType) else ""


def _padding(attention_mask: Tensor | None, batch: int | None, kv_length: int,
             kv_offset: int) -> Tensor | None:  # fmt: skip
    if attention_mask is None:
        return None
    other = batch is not None and len(attention_mask) != batch
    if attention_mask.dim() != 2 or other:
        raise ValueError(
            f"attention_mask: has shape {tuple(attention_mask.shape)} for {batch} sequences; give "
            "(batch, tokens), a row each"
        )
    real = attention_mask[:, kv_offset : kv_offset + kv_length].bool()
    if real.shape[-1] < kv_length:
        raise ValueError(
            f"attention_mask: covers {attention_mask.shape[-1]} tokens where the cache and the "
            f"input hold {kv_offset + kv_length}; pass the mask of all tokens so far (static "
            "caches are not supported: use the default DynamicCache)"
        )
    return None if bool(real.all()) else real[:, None, None, :]


def read_mask(mask: Tensor | None, queries: int, keys: int) -> tuple[Tensor | None, int | None]:
    """Splits a mask into padding and a sliding window.

    Returns:
        real (B, Tk) bool or None (all real); the tokens of the window or None (plain causal).

    Raises:
        ValueError: the mask is neither causal nor causal with a sliding window (prefix language
            models, custom 4D masks), or a bias on the logits.
    """
    if mask is None:
        return None, None
    if mask.dtype != torch.bool:  # additive: 0 keeps, a number that no logit outweighs removes
        kept = mask == 0
        if not bool((kept | (mask <= -1e4)).all()):
            raise ValueError(
                "attention_mask: holds numbers between 0 and -10,000, so it is a bias on the "
                "logits (ALiBi, say) and no mask; Focus does not support one"
            )
        mask = kept
    if mask.shape[-2] == 1 and (queries > 1 or mask.shape[1] == 1):
        real = mask[:, 0, 0, :keys]
        return (None if bool(real.all()) else real), None
    offset = keys - queries
    query_real = mask[:, 0].diagonal(offset, dim1=-2, dim2=-1)
    # Keys before the first query (a cached prefix) are real if any query sees them.
    real = torch.cat([mask[:, 0, :, :offset].any(-2), query_real], -1)
    return (None if bool(real.all()) else real), _window_of(mask, real, offset)


def refuse_four_dimensions(mask: Tensor | None, implementation: str) -> None:
    """Refuses, before the model's own attention, what FlashAttention would misread: a mask of four
    dimensions, as ``generate`` builds one for a static cache."""
    if "flash" in implementation and mask is not None and mask.dim() == 4:
        raise ValueError(
            "attention_mask: FlashAttention takes no mask of four dimensions, which comes with a "
            "static cache; use the default dynamic cache"
        )


def refuse_other_window(mask: Tensor | None, real: Tensor | None, band: int | None,
                        own: int | None) -> None:  # fmt: skip
    """Refuses a mask of many rows that has another sliding window than the layer: which of the two
    is meant cannot be told.

    Args:
        real, band: what :func:`read_mask` says of the mask; own: tokens of the layer's window, or
            None.
    """
    if mask is None or mask.shape[-2] == 1 or band == own:
        return
    if band is None and own is not None and _span(real, mask.shape[-1]) <= own:
        return
    has = "no sliding window" if band is None else f"a sliding window of {band} tokens"
    raise ValueError(
        f"attention_mask: a 4D mask with {has}, which is not as the model's own "
        f"({own or 'none'}); Focus does not support it: pass a (batch, tokens) mask"
    )


def _span(real_BT: Tensor | None, tokens: int) -> int:
    """From the first real token of a row to its last, the longest of all rows."""
    if real_BT is None:
        return tokens
    place = torch.arange(tokens, device=real_BT.device)
    last, first = place.where(real_BT, -1), place.where(real_BT, tokens)
    return int((last.amax(-1) - first.amin(-1)).amax()) + 1


def refuse_other_length(mask: Tensor | None, tokens: int) -> None:
    """Refuses a mask over another number of keys where no cache is: transformers takes theirs from
    the mask then."""
    if mask is not None and mask.shape[-1] != tokens:
        raise ValueError(
            f"attention_mask: covers {mask.shape[-1]} tokens where the input holds {tokens}; pass "
            "a mask with a column for each token"
        )


def refuse_one_row(mask: Any, tokens: int) -> None:
    """Refuses, before a forward pass, a mask of four dimensions with one row for all queries, which
    lets tokens see later ones."""
    masks = mask.values() if isinstance(mask, Mapping) else [mask]
    if tokens > 1 and any(isinstance(m, Tensor) and m.dim() == 4 and m.shape[-2] == 1
                          for m in masks):  # fmt: skip
        raise ValueError(
            "attention_mask: a 4D mask of one row lets tokens see later ones, and Focus is causal; "
            "pass a (batch, tokens) mask, or use focus.mode(model, 'full')"
        )


def refuse_keywords(kwargs: Mapping[str, Any]) -> None:
    """Refuses what an attention call asks for beside its mask and Focus does not compute."""
    if kwargs.get("output_attentions"):
        raise ValueError("output_attentions: Focus forms no attention matrix; leave it off")
    if kwargs.get("is_causal") is False:
        raise ValueError("is_causal: Focus is causal; use focus.mode(model, 'full')")
    for name in ("position_bias", "s_aux"):
        if kwargs.get(name) is not None:
            raise ValueError(f"{name}: is part of this model's logits and not supported by Focus")


def _window_of(mask: Tensor, real: Tensor, offset: int) -> int | None:
    position = torch.arange(mask.shape[-1], device=mask.device)
    distance = position[offset:, None] - position[None, :]
    seen = mask & real[:, None, offset:, None]
    causal = (distance >= 0) & real[:, None, None, :] & real[:, None, offset:, None]
    if torch.equal(seen, causal.expand_as(seen)):
        return None
    width = int(torch.where(seen, distance, -1).amax()) + 1
    if not torch.equal(seen, (causal & (distance < width)).expand_as(seen)):
        raise ValueError(
            "attention_mask: this mask is neither causal nor causal with a sliding window (tokens "
            "of an image that see each other both ways, say); Focus does not support it: pass a "
            "(batch, tokens) mask and text alone, or use focus.mode(model, 'full')"
        )
    return width
