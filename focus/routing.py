"""Routing: from hidden states to balanced logits.

Everything here is float32 (or wider), whatever the model's dtype and under any autocast.

Shape suffixes: B batch, S sides (those of queries, then the keys'; one where both are the same), Hr
routers a layer (1, or the key heads), Hq queries' routings (Hr, or the query heads), T tokens, E
model dimension, R routing dimension, K groups.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from focus.attention import route
from focus.balance import mean_of_texts, sinkhorn_potentials
from focus.config import FocusConfig
from focus.groups import Memberships, memberships_of, with_heavy
from focus.scores import RouterWeights, normalised

CALIBRATED = ("heavy_weight", "heavy_bias", "taken_at")


class Router(nn.Module):
    """Learnable centroids of one attention layer (paper: Section 2).

    Parameters are ``projection`` (S, Hr, E, R) and ``centroids`` (S, Hr, K, R); with one router a
    layer these are the paper's E*R + K*R numbers. With ``routers = "query_head"`` the query heads
    that share a key head are sides of their own, before the keys'. The buffer ``potentials``
    (S, Hr, K) holds the frozen potentials of the ``causal`` balance, in units of the scores, and
    ``batches`` how many training batches they average. Where there are heavy hitters, the buffers
    ``heavy_weight`` (Hr, E) and ``heavy_bias`` (Hr,) tell them: a token is one where its score is
    above zero. Where groups are allocated, the buffer ``taken_at`` (Hq, K) tells from which mean
    ``top_k`` on a routing looks into its n-th group. All stay float32 when the model is cast.

    Args:
        config: what is routed.
        hidden_size: E.
        key_heads, query_heads: of the layer.
        generator: of the random initialisation; None: torch's global one.
    """

    projection: nn.Parameter
    centroids: nn.Parameter
    potentials: Tensor
    batches: Tensor
    heavy_weight: Tensor
    heavy_bias: Tensor
    taken_at: Tensor
    _line: str
    _own: str
    _state: str
    _written: tuple[int, ...]

    def __init__(self, config: FocusConfig, hidden_size: int, key_heads: int, query_heads: int,
                 generator: torch.Generator | None = None) -> None:  # fmt: skip
        super().__init__()
        self.config = config
        self.spread: list[tuple[int, int]] = []  # by top_k, where groups are allocated
        self._rename()
        sides = {"key_head": 2, "query_head": query_heads // key_heads + 1}.get(config.routers, 1)
        heads = key_heads if config.two_sided else 1
        device = None if torch.get_default_device().type == "meta" else "cpu"
        exact = {"generator": generator, "dtype": torch.float32, "device": device}
        shape = (sides, heads, hidden_size, config.routing_dim)
        self.projection = nn.Parameter(torch.randn(shape, **exact) / hidden_size**0.5)  # type: ignore[arg-type]
        shape = (sides, heads, config.num_groups, config.routing_dim)
        self.centroids = nn.Parameter(torch.randn(shape, **exact) / config.routing_dim**0.5)  # type: ignore[arg-type]
        zeros = torch.zeros(sides, heads, config.num_groups, dtype=torch.float32, device=device)
        self.register_buffer("potentials", zeros)
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64, device=device))
        if config.heavy_hitters:
            self.take(heavy_weight=torch.zeros(heads, hidden_size, device=device),
                      heavy_bias=torch.full((heads,), -1.0, device=device))  # fmt: skip
        if config.allocated:
            alike = torch.arange(1, config.num_groups + 1, dtype=torch.float32, device=device)
            self.take(taken_at=alike.repeat(self.query_routings, 1))

    @property
    def name(self) -> tuple[str, str | None]:
        """Tells its cached keys from those of another, and, by the second part, from its own before
        its parameters changed. Copies share the first part, and the second until either changes.
        Compiled code does not know the second (None); writes through ``.data`` are not seen."""
        if torch.compiler.is_compiling():
            return self._line, None
        centroids = self._parameters.get("centroids")
        if centroids is None or not centroids.is_meta:
            now = self._writes()
            if now != self._written:
                self._state, self._written = f"{self._own} {now}", now
        return self._line, self._state

    def _rename(self) -> None:
        # Tensors that are put in the place of others count their writes anew.
        self._line = self._own = self._state = uuid.uuid4().hex
        self._written = ()

    def _writes(self) -> tuple[int, ...]:
        """How often each tensor that files keys was written to: no device is asked."""
        own: dict[str, Any] = self._parameters  # a step has no time for getattr
        potentials: Any = self._buffers["potentials"]
        try:
            if "projection" in own and "centroids" in own:
                return own["projection"]._version, own["centroids"]._version, potentials._version
            # Parametrised (weight_norm, say): torch computes them from others.
            return (*(each._version for each in self.parameters()), potentials._version)
        except RuntimeError:  # tensors of inference mode do not count
            return ()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_state": self.name[1]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_name" in state:  # as models were saved before lines were told apart
            self._line = self._state = state["_name"]
        self._own, self._written = uuid.uuid4().hex, self._writes()

    @property
    def query_routings(self) -> int:
        """Hq."""
        sides, heads, _, _ = self.centroids.shape
        return heads * max(1, sides - 1)

    def groups_of_queries(self, config: FocusConfig) -> tuple[int, int]:
        """The fewest and the most groups that any routing's queries look into, with that of the
        heavy hitters."""
        heavy = config.heavy_hitters > 0
        if not config.allocated:
            return config.top_k + heavy, config.top_k + heavy
        fewest, most = self.spread[config.top_k - 1]
        return fewest + heavy, most + heavy

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        own = {name for name in state_dict if name.startswith(prefix)}
        for name in own:  # may take the place of ours, as a model that was cast had it
            tensor = state_dict[name]
            if isinstance(tensor, Tensor) and tensor.dtype in (torch.bfloat16, torch.float16):
                state_dict[name] = tensor.float()
        super()._load_from_state_dict(state_dict, prefix, *args)
        found = [name for name in CALIBRATED if prefix + name in own]
        differs = found != [name for name in CALIBRATED if name in self._buffers]
        known = bool(found) or prefix + "potentials" in own  # not where parameters alone are loaded
        errors: list[str] = args[-1]
        if differs and known and not any("calibrated otherwise" in each for each in errors):
            heavy = 0.02 if "heavy_weight" in found else 0.0
            errors.append(f"{prefix}*: calibrated otherwise than this model; attach with "
                          f"heavy_hitters={heavy}, allocated={'taken_at' in found}, or use "
                          "focus.save_adapter and load_adapter, which keep it")  # fmt: skip
        self._rename()
        self._note_spread()

    def _note_spread(self) -> None:
        # Ahead: a decoding step that asked a GPU for it would wait.
        taken_at = getattr(self, "taken_at", None)
        if taken_at is not None and not taken_at.is_meta:
            every = torch.arange(1, taken_at.shape[1] + 1, device=taken_at.device)
            count = (taken_at[..., None] <= every).sum(1)  # (Hq, K): at each mean
            self.spread = list(zip(count.amin(0).tolist(), count.amax(0).tolist(), strict=True))

    def take(self, **found: Tensor | None) -> None:
        """Sets buffers that no gradient teaches, float32; None: there is none any more."""
        for name, new in found.items():
            self._buffers.pop(name, None)
            if new is not None:
                with torch.inference_mode(False):  # or nothing could write to it elsewhere
                    own = new.to(self.centroids.device, torch.float32, copy=True)
                self.register_buffer(name, own)
        self._note_spread()
        if "heavy_weight" in found:  # by which keys are filed, too
            self._rename()

    def heavy(self, hidden_BTE: Tensor) -> Tensor:
        """Whether tokens are heavy hitters (:mod:`focus.heavy`), (B, Hr, T) bool."""
        dtype = torch.promote_types(hidden_BTE.dtype, torch.float32)
        weight, bias = self.heavy_weight.to(dtype), self.heavy_bias.to(dtype)
        with torch.no_grad(), torch.autocast(hidden_BTE.device.type, enabled=False):
            return (F.linear(normalised(hidden_BTE.to(dtype)), weight, bias) > 0).transpose(1, 2)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Router:
        # A cast of the model moves the router and leaves its precision: an average that takes a
        # twentieth of each batch stands still in bfloat16.
        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(move, recurse)

    def forward(self, hidden_BTE: Tensor, real_BT: Tensor | None = None, *,
                balance: str | None = None, temperature: float | None = None,
                learn: bool = False, weights: RouterWeights | None = None,
                mask: FocusConfig | None = None) -> Tensor | Memberships:  # fmt: skip
        """Balanced logits (scores + potentials) / temperature, (B, S, Hr, T, K): soft assignments
        are their softmax, hard memberships their largest entries. Or the memberships themselves.

        Args:
            hidden_BTE: input of the attention layer, any floating dtype.
            real_BT: bool, False for padding, which takes no part in a balance; None: all real.
            balance, temperature: in place of the config's.
            learn: the potentials that Sinkhorn finds on this batch also enter the running average
                of the frozen ones (over all processes, where torch.distributed runs).
            weights: :meth:`weights`, where many calls share them.
            mask: a config of this router: gives :func:`memberships_of` the logits by it, without
                gradients, by compiled code where there is any (the same to rounding).

        Raises:
            ValueError: Sinkhorn is to balance more groups than there are tokens, with padding.
        """
        if mask is not None:
            return self._memberships(hidden_BTE, real_BT, mask, weights or self.weights())
        balance = balance or self.config.balance
        temperature = temperature or self.config.temperature
        with torch.autocast(hidden_BTE.device.type, enabled=False):
            scores = self.scores(hidden_BTE, weights)
            if balance == "sinkhorn" or learn:
                scores_of = scores if balance == "sinkhorn" else scores.detach()
                found = self.balanced(scores_of, temperature, real_BT)
                if learn:
                    self._observe(mean_of_texts(found.detach(), real_BT))
                if balance == "sinkhorn":
                    scores = scores + found.unsqueeze(-2)
            if balance == "causal":
                scores = scores + self.potentials.to(scores.dtype).unsqueeze(-2)
            return scores / temperature

    def _memberships(self, hidden_BTE: Tensor, real_BT: Tensor | None, config: FocusConfig,
                     weights: RouterWeights) -> Memberships:  # fmt: skip
        own_scores = type(self).scores is not Router.scores  # a subclass has another rule
        taken_at = self.taken_at if config.allocated else None
        if (
            own_scores
            or config.balance == "sinkhorn"
            or not route.computes(hidden_BTE, config.routing_dim, config.num_groups)
        ):
            with torch.no_grad():
                logits = self.forward(hidden_BTE, real_BT, balance=config.balance,
                                      temperature=config.temperature, weights=weights)  # fmt: skip
                found = memberships_of(cast(Tensor, logits), config, taken_at)
                if not config.heavy_hitters:
                    return found
                return Memberships(*with_heavy(found.query, found.of_keys, self.heavy(hidden_BTE)))
        if config.balance != "causal":
            weights = weights._replace(potentials=torch.zeros_like(weights.potentials))
        heavy = (self.heavy_weight, self.heavy_bias) if config.heavy_hitters else None
        query, key = route.route(
            hidden_BTE, weights, config.top_k, config.key_top_k, taken_at, heavy
        )
        return Memberships(query, key if config.separate_keys else None)

    def scores(self, hidden_BTE: Tensor, weights: RouterWeights | None = None) -> Tensor:
        """Similarity of tokens and centroids, (B, S, Hr, T, K): see :class:`RouterWeights`."""
        return (weights or self.weights()).scores(hidden_BTE)

    def weights(self) -> RouterWeights:
        """The parameters as they are now."""
        cosine = self.config.routers != "paper"
        return RouterWeights(self.projection, self.centroids, self.potentials, cosine)

    def balanced(self, scores: Tensor, temperature: float | None = None,
                 real_BT: Tensor | None = None) -> Tensor:  # fmt: skip
        """Sinkhorn's potentials (B, S, Hr, K) of scores (B, S, Hr, T, K); zero for query heads of
        their own, which look where they want."""
        temperature = temperature or self.config.temperature
        iterations, (tokens, groups) = self.config.sinkhorn_iterations, scores.shape[-2:]
        if tokens < groups:
            padding = "" if real_BT is None else ", padding among them"
            raise ValueError(
                f"num_groups: {groups} groups cannot be balanced over {tokens} tokens{padding}; "
                "give longer sequences, fewer groups or another balance"
            )
        if self.config.routers != "query_head":
            return sinkhorn_potentials(scores, temperature, iterations, real_BT)
        keys = sinkhorn_potentials(scores[:, -1:], temperature, iterations, real_BT)
        none = keys.new_zeros(len(keys), scores.shape[1] - 1, *keys.shape[2:])
        return torch.cat([none, keys], 1)

    @torch.no_grad()
    def _observe(self, found_SHrK: Tensor) -> None:
        found = found_SHrK.to(self.potentials.dtype)
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(found)
            found = found / dist.get_world_size()
        # A batch that is not finite, whose loss nobody steps on, must not stay in the average.
        finite = found.isfinite().all()
        found = torch.where(finite, found, self.potentials)
        self.batches += finite
        # A plain mean for the first batches, then one over about the last twenty: centroids move.
        weight = (1.0 / self.batches.clamp(min=1).to(found.dtype)).clamp(min=0.05)
        self.potentials.lerp_(found, weight)
