"""What ``position_ids`` say of the texts in a row.

Shape suffixes: B batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def refuse_positions(kwargs: Mapping[str, Any], seen: int) -> None:
    """Before a forward pass with these arguments over a cache of ``seen`` tokens. Whether
    transformers keeps texts in one row apart depends on the cache, the mask and the attention
    implementation; Focus never does. Generation from a filled cache begins in some versions of
    transformers with the whole prompt again.

    Raises:
        ValueError: positions do not rise from one real token to the next, or leave gaps where there
            is no mask, or bounds of several texts are given; or any are, and there is padding
            within a text; or a real token has a position that the cache's tokens have.
    """
    positions: Any = kwargs.get("position_ids")
    mask: Any = kwargs.get("attention_mask")
    bounds, given = kwargs.get("cu_seq_lens_q"), _two_dimensional(positions)
    anew = given and _start_anew(positions, mask, seen)
    if anew or (bounds is not None and len(bounds) > 2):
        raise ValueError(
            "position_ids: start anew or leave gaps (or cu_seq_lens_q is given), so there are "
            "several texts in one row, which Focus does not tell apart; pad them into a batch "
            "(TRL: packing=False)"
        )
    if given and _two_dimensional(mask) and _padding_within(mask):
        raise ValueError(
            "attention_mask: has padding between real tokens, which the window would count and "
            "position_ids may not; put all padding of a row before or after its text"
        )
    if given and seen:
        _refuse_behind(positions, mask, seen)


def _refuse_behind(positions: Tensor, mask: Any, seen: int) -> None:
    before: Tensor | int = seen
    first = positions
    if (real := _real(positions, mask, seen)) is not None:
        before, first = real[:, :seen].sum(-1, keepdim=True), positions.where(real[:, seen:], seen)
    if bool((first < before).any()):
        raise ValueError(
            f"position_ids: begin at {int(first.min())} where the cache holds {seen} tokens; give "
            "the new tokens alone, at the positions that follow, or begin with a new cache"
        )


def _real(positions: Tensor, mask: Any, seen: int) -> Tensor | None:
    """Which tokens of the cache and of these positions a mask says are real, (B, seen + T); None
    where it is of no such shape. It may cover later tokens, too."""
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        return None
    every = seen + positions.shape[1]
    return mask[:, :every].to(positions.device).bool() if mask.shape[1] >= every else None


def _start_anew(positions: Tensor, mask: Any, seen: int) -> bool:
    if mask is None:  # transformers takes a gap for another text, too
        return bool((positions.diff(dim=1) != 1).any())
    real = _real(positions, mask, seen)
    if real is None:
        return False
    real = real[:, seen:]
    positions = positions.masked_fill(~real, -1)
    return bool((real[:, 1:] & (positions[:, 1:] <= positions.cummax(-1).values[:, :-1])).any())


def _two_dimensional(given: Any) -> bool:
    # A step of one token is not looked at: on a device the host would wait for it.
    return isinstance(given, Tensor) and given.dim() == 2 and given.shape[1] > 1


def _padding_within(mask: Tensor) -> bool:
    real = mask.bool()
    starts = (real[:, 1:] & ~real[:, :-1]).sum(1) + real[:, 0]
    return bool((starts > 1).any())
