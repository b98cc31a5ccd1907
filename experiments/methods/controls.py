"""Controls: routings that learnt nothing, put in the place of trained routers.

What a trained router gains over these at equal density is what it learnt; what it gains over the
pretrained model alone could as well be chance, or the window.

Shape suffixes: B batch, S sides, T tokens, E model dimension, K groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

import focus
from focus.architectures import AttentionLayer
from focus.config import FocusConfig
from focus.density import PairCounts, count_pairs
from focus.ngrams import keys_after_ngrams
from focus.routing import Prepared, Router, memberships_of

KINDS = ("random", "position", "token", "window")
MOST_GROUPS = 64  # of the compiled kernel
# Queries and keys apart; a balance would even out what a rule has made uneven.
PLAIN = {"routers": "key_head", "balance": "softmax"}


class FixedRouter(Router):
    """Groups that no hidden state decides: (B, S, 1, T, K) scores of a rule.

    ``position``: token i is in group i mod K. ``token``: a token's identity, hashed. ``window``:
    queries and keys never meet, so the window and the sinks are all there is (StreamingLLM). The
    k-th next group comes k-th, so that top-k takes k groups of neighbouring number.

    Args:
        config: gives the number of groups.
        kind: ``position``, ``token`` or ``window``.
    """

    def __init__(self, config: FocusConfig, kind: str) -> None:
        plain = config.replace(**PLAIN)
        super().__init__(plain, 1, 1, 1)
        self.kind = kind
        self.input_ids: Tensor | None = None

    def scores(self, hidden_BTE: Tensor, ready: Prepared | None = None) -> Tensor:
        """Scores by the rule; see the class. There are no parameters to have ready."""
        own_BT = self._groups(hidden_BTE)
        groups = self.config.num_groups
        order = torch.arange(groups)
        query = -((order - own_BT.unsqueeze(-1)) % groups)
        # For the window alone, keys count down from the last group and queries up from the first:
        # up to half the groups never meet.
        key = -((groups - 1 - order).expand_as(query)) if self.kind == "window" else query
        return torch.stack([query, key], 1).unsqueeze(2).float().to(hidden_BTE.device)

    def _groups(self, hidden_BTE: Tensor) -> Tensor:
        batch, tokens = hidden_BTE.shape[:2]
        if self.kind == "token":
            if self.input_ids is None:
                raise RuntimeError("groups by token identity need the model's input_ids")
            # Multiplicative hashing (Knuth): neighbouring ids are often related words.
            return (self.input_ids.cpu() * 2_654_435_761 % 2**32) // 2**16 % self.config.num_groups
        if self.kind == "position":
            return (torch.arange(tokens) % self.config.num_groups).expand(batch, tokens)
        return torch.zeros(batch, tokens, dtype=torch.int64)


@contextmanager
def controlled(model: PreTrainedModel, kind: str, calibration: list[Tensor], seed: int,
               num_groups: int | None = None) -> Iterator[PreTrainedModel]:  # fmt: skip
    """The attached model with a control in the place of every router, which come back on exit.

    Args:
        model: attached; its config gives groups, window and sinks.
        kind: a name of :data:`KINDS`.
        calibration: windows (1, T) on which random routers find their potentials.
        seed: of random routers.
        num_groups: of the control; None: as many as the trained routers have.

    Raises:
        ValueError: an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"controls.kinds: must be of {', '.join(KINDS)}, got {kind!r}")
    state = model.focus_state
    trained, config = state.routers, state.config
    groups = num_groups or config.num_groups
    drawn = config.replace(num_groups=groups, top_k=min(config.top_k, groups))
    hook = model.register_forward_pre_hook(_pass_ids, with_kwargs=True)
    try:
        for number, (index, router) in enumerate(trained.items()):
            layer = state.layers[index]
            layer.module.focus_router = _control(router, layer, kind, seed + number, drawn)
        state.config = drawn if kind == "random" else drawn.replace(**PLAIN)
        if kind == "random":
            calibrate(model, calibration)
        yield model
    finally:
        hook.remove()
        state.config = config
        for index, router in trained.items():
            state.layers[index].module.focus_router = router


def _control(trained: Router, layer: AttentionLayer, kind: str, seed: int,
             drawn: FocusConfig) -> Router:  # fmt: skip
    if kind != "random":
        return FixedRouter(drawn, kind).eval().to(trained.projection.device)
    generator = torch.Generator().manual_seed(seed)
    router = Router(drawn, layer.hidden_size, layer.key_heads, layer.query_heads, generator)
    return router.requires_grad_(False).eval().to(trained.projection.device)


def _pass_ids(model: torch.nn.Module, args: tuple, kwargs: dict) -> None:
    input_ids = args[0] if args else kwargs["input_ids"]
    for router in model.focus_state.routers.values():
        if isinstance(router, FixedRouter):
            router.input_ids = input_ids


def calibrate(model: PreTrainedModel, windows: list[Tensor]) -> None:
    """Lets untrained routers find their causal potentials as training would, without a step.

    Args:
        model: attached.
        windows: token ids (1, T).
    """
    routers = model.focus_state.routers

    def observe(index: int, hidden: Tensor, query: Tensor, key: Tensor) -> None:
        routers[index](hidden, learn=True)

    for router in routers.values():
        router.train()  # so that soft mode balances each window as training does
    with torch.no_grad(), focus.mode(model, "soft", tap=observe):
        for window in windows:
            model(window.to(model.device), use_cache=False)
    for router in routers.values():
        router.eval()


def groups_keeping(share: float, kind: str, config: FocusConfig, windows: Sequence[Tensor]) -> int:
    """The largest number of groups, up to the compiled kernel's, with which a rule keeps at least
    that share of the distant pairs of these windows; the fewest that mask anything, if none does.

    Args:
        share: 0 to 1, of the pairs beyond the window and the sinks.
        kind: ``position`` or ``token``.
        config: the hard mask; its own number of groups is not read.
        windows: token ids (N, T) of each document.
    """
    fewest = config.top_k + config.key_top_k
    for groups in range(MOST_GROUPS, fewest, -1):
        tried = config.replace(num_groups=groups)
        pairs = PairCounts.total(ruled_pairs(kind, tried, each) for each in windows)
        if pairs.distant_kept >= share * pairs.distant:
            return groups
    return fewest


def ruled_pairs(kind: str, config: FocusConfig, ids_NT: Tensor) -> PairCounts:
    """Pairs of windows that a rule's hard mask keeps, which takes no model: hidden states do not
    decide. Arguments as of :func:`groups_keeping`."""
    router = FixedRouter(config, kind)
    router.input_ids = ids_NT
    found = memberships_of(router.scores(ids_NT.unsqueeze(-1)), router.config)
    extra = None
    if config.ngram:
        extra = keys_after_ngrams(ids_NT, config.ngram, config.ngram_keys, config.window,
                                  ids_NT.shape[1])  # fmt: skip
    return count_pairs(*found, config.window, config.sinks, None, extra)


def equal_window(tokens: int, sinks: int, density: float) -> int:
    """The smallest window that, with the sinks, keeps at least this share of causal pairs."""
    causal = tokens * (tokens + 1) // 2
    for window in range(1, tokens + 1):
        # Queries from position `window` on leave out i - window + 1 keys, less the sinks there.
        left_out = sum(max(0, i - window + 1 - sinks) for i in range(window, tokens))
        if causal - left_out >= density * causal:
            return window
    return tokens
