"""What the layers of one forward pass are asked alike: read by the first of them.

Shape suffixes: B batch, H query heads, Hk key heads, M new tokens, T tokens, D head dimension.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from focus import masks
from focus.attention.dtypes import autocast_on
from focus.cache_layer import FocusCacheLayer
from focus.call import Call, Terms


def terms_of(call: Call, cache: FocusCacheLayer | None, query: Tensor, key: Tensor,
             mask: Tensor | None, dropout: float, kwargs: dict[str, Any]) -> Terms:  # fmt: skip
    """Those of a layer's call, read anew only where the one before was asked otherwise; what Focus
    does not compute is refused.

    Args:
        cache: the layer's; query: (B, H, M, D); key: (B, Hk, M, D); mask, dropout, kwargs: as
            transformers gives them to an attention function.
    """
    seen = 0 if cache is None else cache.seen
    own_window, softcap = kwargs.get("sliding_window"), kwargs.get("softcap")
    batch, _, new, _ = query.shape
    asked = (batch, new, key.shape[2], seen, own_window, softcap, dropout, query.device)
    known = call.terms
    if known is None or known.mask is not mask or known.asked != asked:
        known = call.terms = _read(call, cache, asked, mask, kwargs)
    return known


def _read(call: Call, cache: FocusCacheLayer | None, asked: tuple[Any, ...], mask: Tensor | None,
          kwargs: dict[str, Any]) -> Terms:  # fmt: skip
    batch, new, keys, seen, own_window, softcap, dropout, device = asked
    masks.refuse_keywords(kwargs)
    tokens = keys + seen
    if cache is None:
        masks.refuse_other_length(mask, tokens)
    elif seen:
        cache.check_batch(batch)
    real, band = masks.read_mask(mask, new, tokens)
    masks.refuse_other_window(mask, real, band, own_window)
    if real is not None:
        real = real.expand(batch, -1)  # a mask of four dimensions may be one for all
    new_real = real if cache is None else cache.new_real(real)
    limit = own_window if own_window is not None and (seen or own_window < tokens) else None
    near = tokens <= min(call.config.window, limit or tokens)
    of_torch = call.mode.backend == "auto" and softcap is None and not dropout
    whole = near and of_torch and real is None
    return Terms(mask, asked, seen, real, new_real, own_window, limit, softcap, dropout, whole,
                 autocast_on(device.type))  # fmt: skip
