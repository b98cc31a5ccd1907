"""Full attention of an attached model, looked at layer by layer: what calibration learns from.

Shape suffixes: B batch, T tokens, E model dimension, H query heads, Hk key heads, D head dimension,
G query heads a key head, M queries, N keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from focus.call import Tap
from focus.modes import mode
from focus.state import attached_whole, transformers_model

ROWS = 512  # queries whose weights are formed at a time
TOKENS = (torch.int64, torch.int32)
RUN = 64  # of one token at the end of a text: padding, whatever it is
SETTLED = 256  # later queries that must follow a key: of fewer, its weight says little


def observe(model: nn.Module, texts: Iterable[Tensor], tap: Tap) -> None:
    """Runs texts through the model under full attention and shows ``tap`` every routed layer.

    Args:
        texts: token ids (B, T) without padding, T at least window + sinks + 512; others are
            refused, and if there are none.
    """
    state = attached_whole(model)
    config, seen = state.config, False
    if any(router.centroids.is_meta for router in state.routers.values()):
        raise ValueError("model: its weights are offloaded; calibrate it before, save the adapter, "
                         "and load that on the offloaded model")  # fmt: skip
    least = config.window + 2 * SETTLED + config.sinks
    text_config = transformers_model(model).config.get_text_config(decoder=True)
    padding = getattr(text_config, "pad_token_id", None)
    # Every group is full attention, which no tap sees.
    every = mode(model, "hard", tap=tap, top_k=config.num_groups, probe="multi_probe",
                 balance="causal", ngram=0)  # fmt: skip
    with torch.no_grad(), evaluating(model), every:
        if not isinstance(texts, Iterable):
            raise ValueError(f"texts: must be a list of token ids, got {type(texts).__name__}")
        if isinstance(texts, Tensor):
            raise ValueError("texts: is one tensor; give a list of them, [texts]")
        for ids in texts:
            _check(ids, least, padding)
            model(input_ids=ids.to(next(model.parameters()).device), use_cache=False)
            seen = True
    if not seen:
        raise ValueError("texts: there are none; give a few windows of token ids")


def _check(ids: object, least: int, padding: int | None) -> None:
    """Refuses what is no batch of texts, each of so many tokens, as far as ids alone can tell."""
    if not (isinstance(ids, Tensor) and ids.dim() == 2 and ids.dtype in TOKENS
            and ids.shape[1] >= least):  # fmt: skip
        got = f"{ids.dtype} {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"texts: must be a list of token ids, each (batch, tokens) of at least "
                         f"{least} tokens, got {got}")  # fmt: skip
    ends = torch.stack([ids[:, :RUN], ids.flip(1)[:, :RUN]])
    alike = ends == ends[..., :1]
    # A text may well end with the token that pads others, but not twice.
    pads = (ends[..., 0] == (-1 if padding is None else padding)) & alike[..., 1]
    if bool((pads | alike.all(-1)).any()):
        raise ValueError(
            "texts: one begins or ends with padding, which would be measured as text; cut each to "
            "its own tokens, or join them into windows of one length"
        )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout, which would give another result each time; each module's own state after."""
    former = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, training in former:
            module.training = training


def reach_of(module: nn.Module) -> int | None:
    """Tokens of an attention module's own sliding window; None: it has none."""
    config = getattr(module, "config", None)
    if getattr(config, "use_sliding_window", True) is False:
        return None
    found: int | None = getattr(module, "sliding_window", getattr(config, "sliding_window", None))
    return found


def weights_of(query_HTD: Tensor, key_HkTD: Tensor,
               reach: int | None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:  # fmt: skip
    """Full attention's weights, some rows at a time: positions (M,) of the queries, how many tokens
    each comes after each key (M, N), and the weights (Hk, G, M, N), on the CPU.

    Args:
        query_HTD, key_HkTD: as a tap is shown them. A soft-cap of the model's is left out.
        reach: tokens of the model's own sliding window, or None.
    """
    query, key = query_HTD.float().cpu(), key_HkTD.float().cpu()
    grouped, scale = query.unflatten(0, (len(key), -1)), query.shape[-1] ** -0.5
    position = torch.arange(query.shape[1], device="cpu")
    for rows in position.split(ROWS):
        end = int(rows[-1]) + 1
        logits = grouped[:, :, rows] @ key[:, None, :end].transpose(-1, -2) * scale
        later = rows[:, None] - position[:end]
        unseen = later < 0 if reach is None else (later < 0) | (later >= reach)
        yield rows, later, logits.masked_fill(unseen, -torch.inf).softmax(-1)
