"""What the layers of one forward pass are asked alike: read by the first of them.

Shape suffixes: B batch, H query heads, Hk key heads, M new tokens, T tokens, D head dimension.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from focus import masks

if TYPE_CHECKING:
    from focus.hooks import LayerCall


class Terms(NamedTuple):
    """What an attention call is asked beside queries, keys and values.

    mask, asked: what the rest was read from; batch: B; head_dim: D; seen: tokens before the new
    ones, in the cache; real: (B, T) bool of all tokens so far, or None; own_window: tokens of the
    model's own sliding window, or None; limit: the same where it removes a pair; whole: the window
    holds every pair, and torch's own attention knows all there is to it; one_more: so it is for a
    single token that follows others; autocast: whether it is on.
    """

    mask: Tensor | None
    asked: tuple[Any, ...]
    batch: int
    head_dim: int
    seen: int
    real: Tensor | None
    own_window: int | None
    limit: int | None
    softcap: float | None
    dropout: float
    whole: bool
    one_more: bool
    autocast: bool


def terms_of(layer: LayerCall, query: Tensor, key: Tensor, mask: Tensor | None, dropout: float,
             kwargs: dict[str, Any]) -> Terms:  # fmt: skip
    """Those of a layer's call, read anew only where the layer before it was asked otherwise.

    Args:
        query: (B, H, M, D); key: (B, Hk, M, D); mask, dropout, kwargs: as transformers gives them
            to an attention function.

    Raises:
        ValueError: Focus does not compute what is asked.
    """
    seen = 0 if layer.cache is None else layer.cache.seen
    own_window, softcap = kwargs.get("sliding_window"), kwargs.get("softcap")
    batch, _, new, dim = query.shape
    asked = (batch, new, dim, key.shape[2], seen, own_window, softcap, dropout, query.device)
    known = layer.call.shared.terms
    if known is None or known.mask is not mask or known.asked != asked:
        known = layer.call.shared.terms = _read(layer, asked, mask, kwargs)
    return known


def _read(layer: LayerCall, asked: tuple[Any, ...], mask: Tensor | None,
          kwargs: dict[str, Any]) -> Terms:  # fmt: skip
    batch, new, dim, keys, seen, own_window, softcap, dropout, device = asked
    masks.refuse_keywords(kwargs)
    tokens = keys + seen
    if layer.cache is None:
        masks.refuse_other_length(mask, tokens)
    elif seen:
        layer.cache.check_batch(batch)
    real, band = masks.read_mask(mask, new, tokens)
    masks.refuse_other_window(mask, real, band, own_window)
    if real is not None:
        real = real.expand(batch, -1)  # a mask of four dimensions may be one for all
    limit = own_window if own_window is not None and (seen or own_window < tokens) else None
    settings = layer.call.settings
    near = tokens <= min(settings.config.window, limit or tokens)
    of_torch = settings.backend == "auto" and softcap is None and not dropout
    whole = near and of_torch and real is None
    return Terms(mask, asked, batch, dim, seen, real, own_window, limit, softcap, dropout, whole,
                 whole and new == 1 and seen > 0, _autocast(device))  # fmt: skip


def _autocast(device: torch.device) -> bool:
    known = device.type == "cpu" or torch.amp.is_autocast_available(device.type)
    return known and torch.is_autocast_enabled(device.type)
