"""One attention layer's forward pass: what transformers calls in place of its own attention.

A pre-hook on the attention module keeps the layer's hidden states and its place in the cache; the
registered function then routes, attends, and files the tokens in the cache.

Shape suffixes: B batch, T tokens, E model dimension, H query heads, Hk key heads, D head dimension,
K groups.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicLayer

from focus.attention import focus_attention
from focus.attention.decode import Kept
from focus.attention.dense import attend, pairs_kept
from focus.attention.past import Rule
from focus.cache import FocusCacheLayer, adopt, release
from focus.density import PairCounts, count_masked_pairs
from focus.gating import gated_attention
from focus.masks import banded, read_mask
from focus.ngrams import keys_after_ngrams
from focus.routing import Assignments, Memberships, Router

if TYPE_CHECKING:
    from focus.huggingface import FocusState


class FocusLayer:
    """One attention module's router and what it saw in the last forward pass.

    ``tap``, where set, is shown every call's hidden states, queries and keys. ``counts`` is None
    before the first forward; in soft and full mode every pair is computed.
    """

    def __init__(self, state: FocusState, router: Router | None) -> None:
        self.state = state
        self.router = router
        self.hidden: Tensor | None = None
        self.cache: FocusCacheLayer | None = None
        self.memberships: Memberships | None = None
        self.real: Tensor | None = None
        self.extra: Tensor | None = None
        self.kept: Kept | None = None
        self.counts: PairCounts | None = None
        self.ran: str | None = None
        self.tap: Callable[[Tensor, Tensor, Tensor], None] | None = None

    def observe(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook: keeps the layer's input, and its place in the cache, for the attention
        function."""
        self.ran = self.state.mode
        self.cache = None
        cache, index = kwargs.get("past_key_values"), int(module.layer_idx)  # type: ignore[arg-type]
        if cache is not None and self.router is not None:
            if self.state.mode == "hard":
                self.cache = adopt(cache, index)
                self.cache.expected = True
            else:
                release(cache, index)
        if self.state.mode == "full":
            return
        self.hidden = args[0] if args else kwargs["hidden_states"]
        if self.hidden.shape[1] == 0:
            raise ValueError("input_ids: no tokens; give at least one")

    def take_hidden(self) -> Tensor:
        """The layer's input (B, T, E), released so that it does not outlive the forward pass."""
        if self.hidden is None:
            raise RuntimeError("the attention function ran without its module's forward pre-hook")
        hidden, self.hidden = self.hidden, None
        return hidden

    def take_cache(self) -> FocusCacheLayer | None:
        """The layer's place in the cache, if there is one; released likewise."""
        cache, self.cache = self.cache, None
        return cache


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: query (B, H, T, D) in, (B, T, H, D) out."""
    layer: FocusLayer | None = getattr(module, "_focus_layer", None)
    if layer is None:
        raise ValueError(
            f"{type(module).__name__}: attention implementation 'focus' is set but Focus is not "
            "attached to this module; call focus.attach(model, config)"
        )
    _refuse(kwargs, layer, query, key)
    hidden, cache = layer.take_hidden(), layer.take_cache()
    if layer.tap is not None:
        layer.tap(hidden, query, key)
    past = 0 if cache is None else cache.get_seq_length()
    real, pairs = read_mask(attention_mask, query.shape[2], key.shape[2] + past)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    call = _Call(
        layer, query, key, value, scale, real, pairs, softcap, dropout, sliding_window, cache
    )
    if layer.router is None:
        out = call.local()
    elif layer.state.mode == "soft":
        out = call.soft(hidden)
    elif past:
        out = call.continued(hidden)
    else:
        out = call.hard(hidden)
    return out.transpose(1, 2).contiguous(), None


def _refuse(kwargs: dict[str, Any], layer: FocusLayer, query: Tensor, key: Tensor) -> None:
    if key.shape[2] != query.shape[2] and layer.router is not None:
        raise ValueError(
            f"past_key_values: {query.shape[2]} queries over {key.shape[2]} keys: soft mode cannot "
            "continue from a key/value cache; pass the whole sequence with use_cache=False, or "
            "generate in hard or full mode"
        )
    if kwargs.get("output_attentions"):
        raise ValueError("output_attentions: Focus forms no attention matrix; leave it off")
    if kwargs.get("position_bias") is not None:
        raise ValueError("position_bias: not supported by Focus")


class _Call:
    """One layer's attention call: the tensors, the masks and the model's own peculiarities."""

    def __init__(self, layer: FocusLayer, query: Tensor, key: Tensor, value: Tensor, scale: float,
                 real: Tensor | None, pairs: Tensor | None, softcap: float | None, dropout: float,
                 sliding_window: int | None, cache: FocusCacheLayer | None) -> None:  # fmt: skip
        self.layer, self.state, self.cache = layer, layer.state, cache
        self.query, self.key, self.value, self.scale = query, key, value, scale
        self.real, self.pairs, self.softcap, self.dropout = real, pairs, softcap, dropout
        self.sliding_window = sliding_window

    @property
    def router(self) -> Router:
        if self.layer.router is None:
            raise RuntimeError("a local layer has no router")
        return self.layer.router

    def local(self) -> Tensor:
        """A layer that stays as it is: causal, its own window, padding, soft-cap."""
        queries, keys = self.query.shape[2], self.key.shape[2]
        kept = banded(queries, keys, self.sliding_window, self.real, self.query.device)
        return attend(self.query, self.key, self.value, self.scale, softcap=self.softcap,
                      kept=kept.expand(len(self.query), -1, -1, -1),
                      dropout=self.dropout)  # fmt: skip

    def soft(self, hidden: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not self.router.training:
            self._tell_unbalanced()
        assignments: Assignments = self.router(
            hidden, self.real, self.state.balance, self.state.config
        )
        return gated_attention(
            self.query, self.key, self.value, assignments, self.state.config, scale=self.scale,
            real=self.real, pair_mask=self._model_pairs(), softcap=self.softcap,
            dropout=self.dropout,
        )  # fmt: skip

    def _tell_unbalanced(self) -> None:
        config = self.state.config
        balance = self.state.balance or config.balance
        frozen = balance == "causal" and config.potentials == "frozen"
        if frozen and self.router.centroids.requires_grad:
            warnings.warn(
                "the routers are in evaluation mode: a training step leaves their potentials as "
                "they are, so groups are not kept from collapsing; call model.train() first",
                stacklevel=2,
            )

    def hard(self, hidden: Tensor) -> Tensor:
        config = self.state.config
        with torch.no_grad():
            logits = self.router.balanced_logits(hidden, self.real, self.state.balance, config)
            found = self.router.memberships(logits, config)
            extra = self._extra(self.real)
        self._seen(found, extra, self.real, None)
        own = self.softcap is not None or self._limited()
        if own and self._streams():
            return self._stream(found, extra)
        if self.cache is not None:
            self.cache.begin(self._rule(), self.key, self.value, _keys_of(found), self.real)
        # Only the definition knows these with a gradient, and custom masks and dropout at all.
        if own or self.pairs is not None or self.dropout:
            return self._dense(found, extra)
        return self._fast(found, extra)

    def _limited(self) -> bool:
        """Whether the model's own sliding window removes any pair."""
        return self.sliding_window is not None and self.query.shape[2] > self.sliding_window

    def _model_pairs(self) -> Tensor | None:
        """Pairs that the model itself allows, beyond causality and padding; None: all."""
        if self.pairs is not None or not self._limited():
            return self.pairs
        tokens = self.query.shape[2]
        return banded(tokens, tokens, self.sliding_window, self.real, self.query.device)

    def _streams(self) -> bool:
        """Whether the sequence can be read as a decoder does, part by part."""
        needs_grad = torch.is_grad_enabled() and (
            self.query.requires_grad or self.key.requires_grad
        )
        plain = self.pairs is None and not self.dropout and self.state.backend != "dense"
        return plain and not needs_grad

    def _stream(self, found: Memberships, extra: Tensor | None) -> Tensor:
        cache = FocusCacheLayer(DynamicLayer()) if self.cache is None else self.cache
        out, kept = cache.attend(
            self._rule(), self.query, self.key, self.value, found.query, _keys_of(found),
            scale=self.scale, real=self.real, softcap=self.softcap, extra_keys=extra,
        )  # fmt: skip
        self._seen(found, extra, self.real, kept)
        return out

    def _fast(self, found: Memberships, extra: Tensor | None) -> Tensor:
        # A chunk of a left-padded prompt may hold nothing of a sequence, which is then left out.
        if self.real is None or bool(self.real.any(-1).all()):
            return self._focus(self.query, self.key, self.value, found, extra, self.real)
        out, filled = torch.zeros_like(self.query), self.real.any(-1)
        if bool(filled.any()):
            keys = None if found.key is None else found.key[filled]
            own = Memberships(found.query[filled], keys)
            out[filled] = self._focus(self.query[filled], self.key[filled], self.value[filled],
                                      own, None if extra is None else extra[filled],
                                      self.real[filled])  # fmt: skip
        return out

    def _focus(self, query: Tensor, key: Tensor, value: Tensor, found: Memberships,
               extra: Tensor | None, real: Tensor | None) -> Tensor:  # fmt: skip
        config = self.state.config
        return focus_attention(
            query, key, value, found.query, window=config.window, sinks=config.sinks,
            scale=self.scale, key_padding_mask=real, key_membership=found.key, extra_keys=extra,
            backend=self.state.backend,
        )  # fmt: skip

    def continued(self, hidden: Tensor) -> Tensor:
        """New tokens over a cache: their own groups against those that past tokens were given."""
        if self.cache is None:
            raise RuntimeError("there is no cache to continue from")
        self._refuse_to_continue()
        real = self.cache.new_real(self.real)
        with torch.no_grad():
            logits = self.router.balanced_logits(
                hidden, None, self.state.balance, self.state.config,
                self.cache.ready(self.router, hidden.dtype),
            )  # fmt: skip
            found = self.router.memberships(logits, self.state.config)
            self.cache.check(self._rule())
            extra = self._extra(real)
        out, kept = self.cache.attend(
            self._rule(), self.query, self.key, self.value, found.query, _keys_of(found),
            scale=self.scale, real=real, softcap=self.softcap, extra_keys=extra,
        )  # fmt: skip
        self._seen(found, extra, real, kept)
        return out

    def _ids(self) -> Tensor | None:
        """The call's token ids (B, T) where n-grams are matched, else None."""
        if not self.state.config.ngram:
            return None
        ids = self.state.ids
        if ids is None or ids.shape != (len(self.query), self.query.shape[2]):
            raise ValueError(
                "ngram: n-grams are matched by token ids, and this forward pass was given none; "
                "pass input_ids instead of inputs_embeds, or set ngram=0"
            )
        return ids.to(self.query.device)  # layers may be on several

    def _extra(self, real: Tensor | None) -> Tensor | None:
        """Keys (B, M, E) that the call's tokens meet word for word, from the ids of all tokens so
        far; None where n-grams are not matched."""
        ids, config = self._ids(), self.state.config
        if ids is None:
            return None
        if self.state.extra is None:  # the same in every layer
            longest, count, window = config.ngram, config.ngram_keys, config.window
            if self.cache is None:
                self.state.extra = keys_after_ngrams(
                    ids, longest, count, window, ids.shape[1], real
                )
            else:
                self.state.extra = self.cache.further_keys(ids, real, longest, count, window)
        return self.state.extra.to(ids.device)

    def _seen(self, found: Memberships, extra: Tensor | None, real: Tensor | None,
              kept: Kept | None) -> None:  # fmt: skip
        layer = self.layer
        layer.memberships, layer.extra, layer.real = found, extra, real
        layer.kept, layer.counts = kept, None

    def _rule(self) -> Rule:
        """What past keys' groups and places depend on."""
        config = self.state.config
        return Rule(config.window, config.sinks, self.sliding_window, config.num_groups,
                    config.top_k, config.key_top_k, self.state.balance or config.balance,
                    config.ngram > 0)  # fmt: skip

    def _refuse_to_continue(self) -> None:
        if (self.state.balance or self.state.config.balance) == "sinkhorn":
            raise ValueError(
                "balance: 'sinkhorn' looks at the whole sequence, so past tokens would change "
                "their groups at every step; generate with balance='causal' "
                "(focus.mode(model, 'hard', balance='causal')), or pass use_cache=False"
            )
        if self.router.training or self.dropout:
            raise ValueError(
                "past_key_values: the model is in training mode, whose routing and dropout differ "
                "from one call to the next; call model.eval() before generating"
            )
        if self.pairs is not None:
            raise ValueError(
                "attention_mask: a custom 4D mask cannot be combined with a key/value cache; pass "
                "a (batch, tokens) mask of all tokens so far"
            )

    def _dense(self, found: Memberships, extra: Tensor | None) -> Tensor:
        config = self.state.config
        kept = pairs_kept(
            found.query, _keys_of(found), config.window, config.sinks, self.real, extra
        )
        pairs = self._model_pairs()
        if pairs is not None:
            kept = kept & pairs
            self.layer.counts = count_masked_pairs(kept, config.window, config.sinks, self.real)
        return attend(self.query, self.key, self.value, self.scale, kept=kept,
                      softcap=self.softcap, dropout=self.dropout)  # fmt: skip


def _keys_of(found: Memberships) -> Tensor:
    return found.query if found.key is None else found.key
