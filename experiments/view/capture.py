"""Groups of a text's tokens, as the library finds them under a hard mask: what the page draws.

Shapes: B batch, S sides, Hr routers a layer, T tokens, K groups, N further keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import focus
from focus.routing import Memberships
from focus.state import attached

Groups = list[list[int]]  # of every token, the strongest first
UNFINISHED = "\ufffd"  # what a decoder makes of the first bytes of a character


@torch.no_grad()
def capture(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ids: Tensor, title: str,
            how: str, count: int | None = None, **mask: Any) -> dict[str, Any]:  # fmt: skip
    """A passage with the groups that the model's hard mask goes by: title, how, groups (K), window,
    sinks, pieces (the text by token), further (places of the keys that each token meets word for
    word) and layers (:func:`layer_of`).

    Args:
        ids: int64 (T,), the tokens.
        title, how: of the passage.
        count: of layers, evenly from the first to the last; None: all.
        mask: what overrides the routers' config, as of :class:`focus.mode`.

    Raises:
        ValueError: there are no tokens, or more than the model's context holds.
    """
    check(ids, model)
    state = attached(model)
    config = state.config.replace(**mask)
    logits: dict[int, Tensor] = {}

    def tap(index: int, hidden: Tensor, query: Tensor, key: Tensor) -> None:
        logits[index] = state.routers[index](hidden, balance=config.balance)

    # The fast path routes nothing where the window holds the whole text.
    backend = "dense" if len(ids) <= config.window else None
    with focus.mode(model, "hard", backend=backend, tap=tap, **mask):
        model(ids[None].to(model.device), use_cache=False)
        found = focus.memberships(model)
    further = None if state.last is None else state.last.further
    shown = spread(sorted(found), count)
    layers = [layer_of(index, found[index], logits[index]) for index in shown]
    return {
        "title": title, "how": how, "groups": config.num_groups, "window": config.window,
        "sinks": config.sinks, "pieces": pieces_of(tokenizer, ids.tolist()),
        "further": places(further, len(ids)), "layers": layers,
    }  # fmt: skip


def check(ids: Tensor, model: PreTrainedModel) -> None:
    """Raises ValueError where a model cannot read the tokens at once."""
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not len(ids):
        raise ValueError("text: is empty; give at least a word")
    if most is not None and len(ids) > most:
        raise ValueError(f"text: {len(ids)} tokens are more than the model's context of {most}; "
                         "give a shorter text")  # fmt: skip


def layer_of(index: int, found: Memberships, logits: Tensor) -> dict[str, Any]:
    """One layer's groups, of a batch of one, from its memberships and logits (B, S, Hr, T, K).

    By router: keys, each token's groups as a key (as a query too, where queries has none), and
    confidence, the probability of its strongest; by query head: queries, its groups as a query.
    """
    keys, sides = logits[0, -1].float().cpu(), logits[0, :-1].float().cpu()
    sure = keys.softmax(-1).amax(-1)
    queries = []
    if found.key is not None:  # query heads of one router lie side by side
        asking = sides.transpose(0, 1).flatten(0, 1) if len(sides) else keys
        queries = strongest(found.query[0].cpu(), asking)
    return {
        "index": index,
        "keys": strongest(found.of_keys[0].cpu(), keys),
        "confidence": [[round(each, 3) for each in own] for own in sure.tolist()],
        "queries": queries,
    }


def strongest(members: Tensor, logits: Tensor) -> list[Groups]:
    """Each token's groups, the strongest first, from memberships and logits (H, T, K)."""
    count = int(members.sum(-1).max())
    order = logits.masked_fill(~members, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    return order[..., :count].tolist()


def places(further: Tensor | None, tokens: int) -> Groups:
    """Places of the keys (1, T, N) that each token meets word for word; -1 is none."""
    if further is None:
        return [[] for _ in range(tokens)]
    return [sorted({each for each in row if each >= 0}) for row in further[0].tolist()]


def spread(layers: list[int], count: int | None) -> list[int]:
    """So many layers, evenly, the first and the last among them."""
    if count is None or count >= len(layers):
        return layers
    last = len(layers) - 1
    return [layers[round(n * last / max(1, count - 1))] for n in range(count)]


def pieces_of(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    """The text by token. Joined, pieces are the decoded text: a character of several tokens is its
    last token's, and what a token is depends on the one before (a leading space)."""
    pieces: list[str] = []
    start = done = 0  # of the last finished piece, and after it
    for end in range(1, len(ids) + 1):
        before, now = (tokenizer.decode(ids[start:stop], clean_up_tokenization_spaces=False)
                       for stop in (done, end))  # fmt: skip
        if now.endswith(UNFINISHED) and end < len(ids):
            pieces.append("")
            continue
        pieces.append(now[len(before) :])
        start, done = done, end
    return pieces
