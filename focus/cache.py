"""Focus's layer in transformers' key/value cache: the past with its groups.

``generate`` and every model make a ``DynamicCache`` by themselves; in hard mode each routed layer's
empty place in it is taken by a :class:`GroupedLayer`, which owns keys, values and memberships, so
that reordering, cropping and selecting move all of them together.

Shape suffixes: B batch, S sides, Hr routers a layer, T tokens seen, M new tokens, K groups.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from focus.attention.past import Past
from focus.config import FocusConfig
from focus.routing import Prepared, Router, potentials_of

REPLACED = (DynamicLayer, DynamicSlidingWindowLayer)


class GroupedLayer(CacheLayerMixin):
    """One layer's cache. ``update`` hands the new keys through; the attention function files them.

    Args:
        replaced: the cache's own layer, put back when another mode uses the empty cache.
    """

    is_croppable = True
    supports_early_init = False

    def __init__(self, replaced: CacheLayerMixin) -> None:
        # The parent's would set keys and values, which are computed here.
        self.replaced = replaced
        self.past: Past | None = None
        self.made_with: tuple[Any, ...] = ()
        self.expected = False
        self.record_past = bool(getattr(replaced, "record_past", False))
        self.ids: Tensor | None = None  # (B, seen), where n-grams are matched
        self._ready: Prepared | None = None
        self._scores: list[Tensor] = []
        self._potentials: tuple[int, Tensor] | None = None

    @property
    def is_initialized(self) -> bool:  # type: ignore[override]
        """Whether any token was seen."""
        return self.get_seq_length() > 0

    @property
    def keys(self) -> Tensor | None:  # type: ignore[override]
        """All keys in order, (B, Hk, T, D); gathered at each call, zeros for padding."""
        return None if self.past is None else self.past.ordered().key

    @property
    def values(self) -> Tensor | None:  # type: ignore[override]
        """All values in order, likewise."""
        return None if self.past is None else self.past.ordered().value

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any,
               **kwargs: Any) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Returns the new keys and values alone.

        Raises:
            ValueError: something else than an attached model in hard mode continues the cache.
        """
        if not self.expected:
            raise ValueError(
                "past_key_values: this cache was filled in Focus's hard mode and only an attached "
                "model in that mode can continue from it; start with a new cache"
            )
        self.expected = False
        return key_states, value_states

    def start(self, past: Past, made_with: tuple[Any, ...], scores: Tensor | None,
              ids: Tensor | None) -> None:  # fmt: skip
        """Takes the past of the first tokens, their scores where potentials are lagged, and their
        ids where n-grams are matched."""
        self.past, self.made_with = past, made_with
        self.ids = None if ids is None else ids.clone()
        self._scores, self._ready = [] if scores is None else [scores], None

    def ready(self, router: Router, dtype: torch.dtype) -> Prepared:
        """The router's parameters as the steps read them, for hidden states of ``dtype``: kept as
        long as this cache goes on, so that no change of the weights between two uses is missed."""
        if self._ready is None:
            self._ready = router.prepared(dtype)
        return self._ready

    def continued(self, made_with: tuple[Any, ...]) -> Past:
        """The past, to be continued with the same settings.

        Raises:
            ValueError: the keys were routed with others.
        """
        if self.past is None or self.made_with != made_with:
            raise ValueError(
                f"past_key_values: the keys in this cache were routed with {self.made_with}, not "
                f"with {made_with} (groups, groups a query, groups a key, window, sinks, balance, "
                "potentials, n-grams or none); start with a new cache"
            )
        self.past.record = self.record_past
        return self.past

    def new_real(self, real_BT: Tensor | None) -> Tensor | None:
        """Which of the new tokens are real, (B, M) bool or None, from the mask over all.

        Raises:
            ValueError: the mask says something else of the past than it did before.
        """
        if self.past is None:
            raise RuntimeError("the cache is empty")
        seen, before = self.past.seen, self.past.real
        if real_BT is None and before is None:
            return None
        same = real_BT is not None and bool(
            real_BT[:, :seen].all() if before is None else torch.equal(real_BT[:, :seen], before)
        )
        if real_BT is None or not same:
            raise ValueError(
                "attention_mask: says of earlier tokens something else than when they were seen; "
                "pass the mask of all tokens so far, with the same padding"
            )
        new = real_BT[:, seen:]
        return None if before is None and bool(new.all()) else new

    def lagged_logits(self, scores: Tensor, config: FocusConfig,
                      real_BT: Tensor | None) -> Tensor:  # fmt: skip
        """Balanced logits of new tokens from their scores (B, S, Hr, M, K), by the potentials of
        the tokens before their stretches; the scores are kept."""
        first = self.get_seq_length()
        stop = first + scores.shape[-2]
        self._scores.append(scores)
        parts = []
        at = first
        while at < stop:
            start = at - at % config.lag_stride
            end = min(start + config.lag_stride, stop)
            potentials = self._stretch_potentials(start, config, real_BT)
            parts.append(potentials.unsqueeze(-2).expand(*scores.shape[:-2], end - at, -1))
            at = end
        return scores + torch.cat(parts, -2)

    def _stretch_potentials(self, start: int, config: FocusConfig,
                            real_BT: Tensor | None) -> Tensor:  # fmt: skip
        if self._potentials is not None and self._potentials[0] == start:
            return self._potentials[1]
        scores = self._all_scores()
        past = slice(max(0, start - config.lag_tokens), start)
        if start == 0:
            found = scores.new_zeros(*scores.shape[:-2], scores.shape[-1])
        else:
            real = None if real_BT is None else real_BT[:, past]
            found = potentials_of(scores[..., past, :], config, real)
            if real is not None:
                found = torch.where(real.any(-1)[:, None, None, None], found, 0.0)
        self._potentials = start, found
        return found

    def _all_scores(self) -> Tensor:
        self._scores = [torch.cat(self._scores, -2)]
        return self._scores[0]

    # transformers' cache interface

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do before the first tokens."""

    def get_seq_length(self) -> int:
        """Tokens seen."""
        return 0 if self.past is None else self.past.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that a mask is to cover, and its offset: everything, even what has been dropped."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """No maximum."""
        return -1

    def activate_past_recording(self) -> None:
        """Keeps tokens outside the model's own sliding window, so that :meth:`crop` finds them."""
        self.record_past = True
        if self.past is not None:
            self.past.record = True

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last tokens.

        Raises:
            ValueError: a positive number (transformers' rule), or what would come back into the
                model's own sliding window was dropped.
        """
        if tokens_to_remove > 0:
            raise ValueError(
                f"tokens_to_remove: must be negative or 0, got {tokens_to_remove}; give minus the "
                "number of tokens to remove"
            )
        if self.past is None or tokens_to_remove == 0:
            return
        self.past.crop(-tokens_to_remove)
        self._potentials = None
        if self.ids is not None:
            self.ids = self.ids[:, : self.past.seen]
        if self._scores:
            self._scores = [self._all_scores()[..., : self.past.seen, :]]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Puts the sequences in another order (beam search)."""
        if self.past is None or self.past.seen == 0:
            return
        self.past.select(beam_idx)
        if self.ids is not None:
            self.ids = self.ids.index_select(0, beam_idx)
        if self._scores:
            self._scores = [self._all_scores().index_select(0, beam_idx)]
        if self._potentials is not None:
            start, found = self._potentials
            self._potentials = start, found.index_select(0, beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps the sequences named (or marked in a bool mask)."""
        rows = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
        self.reorder_cache(rows)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats every sequence; pages are shared until one of the copies grows."""
        if self.past is not None and self.past.seen:
            rows = torch.arange(self.past.batch, device=self.past.device)
            self.reorder_cache(rows.repeat_interleave(repeats))

    def reset(self) -> None:
        """Forgets everything."""
        self.past, self.ids, self._scores, self._potentials = None, None, [], None

    def offload(self) -> None:
        """Refused: see :func:`adopt`."""
        raise ValueError(_OFFLOADED)

    prefetch = offload


_OFFLOADED = (
    "past_key_values: an offloaded cache is not supported by Focus; use transformers' default "
    "DynamicCache"
)


def adopt(cache: Any, index: int) -> GroupedLayer:
    """The cache's layer ``index`` as a :class:`GroupedLayer`, which takes an empty layer's place.

    Raises:
        ValueError: the cache is of another kind, or was filled without Focus's groups.
    """
    layers = getattr(cache, "layers", None)
    if layers is None:
        raise ValueError(_unsupported(type(cache).__name__))
    if getattr(cache, "offloading", False):
        raise ValueError(_OFFLOADED)
    kind = getattr(cache, "layer_class_to_replicate", None)
    while len(layers) <= index and kind is not None:
        layers.append(kind())
    layer = layers[index]
    if isinstance(layer, GroupedLayer):
        return layer
    if type(layer) not in REPLACED:
        raise ValueError(_unsupported(type(layer).__name__))
    if layer.get_seq_length():
        raise ValueError(
            "past_key_values: this cache was filled in another mode, so the groups of its tokens "
            "are not known; fill it in hard mode, or continue in the mode that filled it"
        )
    layers[index] = GroupedLayer(layer)
    return layers[index]


def release(cache: Any, index: int) -> None:
    """Puts the cache's own layer back where a :class:`GroupedLayer` is still empty.

    Raises:
        ValueError: it is not.
    """
    layers = getattr(cache, "layers", None) or []
    if index >= len(layers) or not isinstance(layers[index], GroupedLayer):
        return
    if layers[index].get_seq_length():
        raise ValueError(
            "past_key_values: this cache was filled in hard mode; only that mode can continue from "
            "it; start with a new cache"
        )
    layers[index] = layers[index].replaced


def _unsupported(name: str) -> str:
    return (
        f"past_key_values: {name} is not supported by Focus in hard mode; use transformers' "
        "default DynamicCache"
    )


def owned(tensor: Tensor) -> Tensor:
    """Detached, and copied where it is a view that would keep something larger alive."""
    tensor = tensor.detach()
    large = tensor.untyped_storage().nbytes() > 1.5 * tensor.numel() * tensor.element_size()
    return tensor.contiguous() if large else tensor
