"""One layer's key/value cache: its past, its tokens' groups, and what belongs to them beside.

Shape suffixes: B batch, Hk key heads, T tokens seen, M new tokens, D head dimension, E further
keys of a query.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from focus.attention.past import Past
from focus.attention.rule import Rule
from focus.call import running
from focus.config import FocusConfig
from focus.ngrams import NgramIndex
from focus.routing import Router
from focus.scores import RouterWeights

CURE = "use focus.FocusCache(), or leave past_key_values to transformers' default DynamicCache"
OFFLOADED = f"past_key_values: an offloaded cache is not supported by Focus; {CURE}"


class FocusCacheLayer(CacheLayerMixin):
    """One layer's cache. ``update`` hands the new keys through; attention files them in ``past``.

    Args:
        replaced: the cache's own layer, put back when another mode uses the empty cache.
    """

    is_croppable = True
    supports_early_init = False

    def __init__(self, replaced: CacheLayerMixin) -> None:
        # The parent's would set keys and values, which are computed here.
        self.replaced = replaced
        self.past = Past()
        self.record_past = bool(getattr(replaced, "record_past", False))  # generate sets it, too
        self.ngrams: NgramIndex | None = None  # of the whole cache, in the layer that asks first
        self._router_weights: RouterWeights | None = None
        self._config: FocusConfig | None = None

    @property
    def seen(self) -> int:
        """Tokens so far."""
        return self.past.seen

    @property
    def is_initialized(self) -> bool:  # type: ignore[override]
        """Whether any token was seen."""
        return self.seen > 0

    @property
    def keys(self) -> Tensor | None:  # type: ignore[override]
        """All keys in order, (B, Hk, T, D); zeros for padding."""
        return self.past.ordered()[0] if self.seen else None

    @property
    def values(self) -> Tensor | None:  # type: ignore[override]
        """All values in order, likewise."""
        return self.past.ordered()[1] if self.seen else None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any,
               **kwargs: Any) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The new keys and values alone; refuses all but an attached model in hard mode."""
        call = running.get()
        if call is None or call.mode.name != "hard":
            raise ValueError(
                "past_key_values: this cache was filled in Focus's hard mode and only an attached "
                "model in that mode can continue from it; start with a new cache"
            )
        return key_states, value_states

    def router_weights(self, router: Router) -> RouterWeights | None:
        """The router's parameters as the steps read them. None where accelerate has offloaded them,
        which brings them for the router's own call alone."""
        if self._router_weights is None and not router.centroids.is_meta:
            self._router_weights = router.weights().kept()
        return self._router_weights

    def begin(self, rule: Rule, key: Tensor, value: Tensor, key_groups: Tensor | None,
              real: Tensor | None, hidden: Tensor | None = None,
              config: FocusConfig | None = None) -> None:  # fmt: skip
        """Takes the first tokens, whose attention is computed elsewhere: see :meth:`Past.begin`.

        Args:
            config: that of the call, where ``hidden`` takes the place of groups.
        """
        self.continued(rule).begin(key, value, key_groups, real, hidden)
        self._config = config

    def goes_on(self, config: FocusConfig, key: Tensor) -> bool:
        """Whether tokens without groups may follow others: what filed keys would have to agree on
        is asked once they are filed."""
        same = self._config is config or self._config == config
        return same and self.past.dtype == key.dtype

    def continued(self, rule: Rule) -> Past:
        """The past, for further tokens; refuses to go on where the keys so far were filed otherwise
        than ``rule`` says."""
        past = self.past
        if not past.seen:
            past.clear()
            self._router_weights = None
        elif past.rule != rule and not past.rule.files_as(rule):
            both = zip(rule._fields, past.rule.of_keys, rule.of_keys, strict=True)
            told = [f"{name} = {a!r} where it is {b!r} now" for name, a, b in both
                    if a != b and name not in ("router", "learnt")]  # fmt: skip
            told = told or ["another router (of another adapter or model), or it has learnt since"]
            raise ValueError(
                f"past_key_values: the keys in this cache were routed with {', '.join(told)}; go "
                "on with the same, or start with a new cache"
            )
        elif rule.learnt is None:
            rule = rule._replace(learnt=past.rule.learnt)
        past.rule, past.record = rule, self.record_past
        return past

    def check_batch(self, batch: int) -> None:
        """Refuses a call of another number of sequences."""
        if self.past.batch != batch:
            raise ValueError(
                f"past_key_values: holds {self.past.batch} sequences, and the call has {batch}; "
                "repeat them with past_key_values.batch_repeat_interleave, keep some with "
                "batch_select_indices, or start with a new cache"
            )

    def new_real(self, real_BT: Tensor | None) -> Tensor | None:
        """Which new tokens are real, (B, M) bool or None, from the mask over all, which must say of
        the past what it said before. To be asked of one layer a forward pass: the host waits."""
        before = self.past.real
        if self.seen == 0 or (real_BT is None and before is None):
            return real_BT
        now = None if real_BT is None else real_BT[:, : self.seen]
        if before is None or now is None:
            every = now if before is None else before
            same = every is not None and bool(every.all())
        else:
            same = torch.equal(now, before)
        if not same:
            raise ValueError(
                "attention_mask: says of earlier tokens something else than when they were seen; "
                "pass the mask of all tokens so far, with the same padding"
            )
        new = None if real_BT is None else real_BT[:, self.seen :]
        return None if new is None or (before is None and bool(new.all())) else new

    def further_keys(self, ids: Tensor, real: Tensor | None, longest: int, count: int,
                     window: int) -> Tensor:  # fmt: skip
        """Keys (B, M, E) that the new tokens meet word for word: see :meth:`NgramIndex.extend`.

        To be asked of one layer a forward pass, always the same.
        """
        if self.ngrams is None:
            self.ngrams = NgramIndex()
        self.ngrams.crop(self.seen)  # a forward pass that failed left its tokens there
        return self.ngrams.extend(ids, real, longest, count, window)

    # transformers' cache interface

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do before the first tokens."""

    def get_seq_length(self) -> int:
        """Tokens seen."""
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that a mask is to cover, and its offset: everything, even what has been dropped."""
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        """No maximum."""
        return -1

    def activate_past_recording(self) -> None:
        """Keeps tokens outside the model's own sliding window, so that :meth:`crop` finds them."""
        self.record_past = True

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
        if tokens_to_remove:
            self.past.crop(-tokens_to_remove)
        if self.ngrams is not None:
            self.ngrams.crop(self.seen)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Puts the sequences in another order (beam search)."""
        if not self.seen:
            return
        self.past.select(beam_idx)
        if self.ngrams is not None:
            self.ngrams.select(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps the sequences named (or marked in a bool mask)."""
        rows = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
        self.reorder_cache(rows)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats every sequence."""
        if self.seen:
            rows = torch.arange(self.past.batch, device="cpu").repeat_interleave(repeats)
            self.reorder_cache(rows)

    def reset(self) -> None:
        """Forgets everything."""
        self.past.clear()
        self.ngrams = self._router_weights = None

    def offload(self) -> None:
        """Refused: see :func:`focus.cache.adopt`."""
        raise ValueError(OFFLOADED)

    prefetch = offload
