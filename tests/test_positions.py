"""What position_ids say: one text a row, which goes on where the cache ends."""

from __future__ import annotations

import pytest
import torch

import focus
from focus import FocusConfig
from tests.models import tiny, token_ids

CONFIG = FocusConfig(num_groups=4, top_k=1, window=16, sinks=2)


@pytest.mark.parametrize("mode", ["soft", "hard"])
@pytest.mark.parametrize("use_cache", [None, False])
def test_packed_sequences_are_refused(mode: str, use_cache: bool | None) -> None:
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    ids, packed = token_ids(1, 40), torch.arange(20).repeat(2)[None]
    between = torch.ones(1, 40, dtype=torch.long)
    between[:, 18:20] = 0
    bounds = torch.tensor([0, 20, 40])
    ways = ({"position_ids": packed}, {"position_ids": packed[:, :20].repeat_interleave(2, 1)},
            {"position_ids": packed, "attention_mask": torch.ones_like(ids)},
            {"position_ids": packed, "attention_mask": between},
            {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds})  # fmt: skip
    with focus.mode(model, mode):
        for way in (*ways, {"position_ids": torch.arange(0, 80, 2)[None]}):
            with pytest.raises(ValueError, match=r"^position_ids: .* several texts in one row"):
                model(ids, use_cache=use_cache, **way)
    with focus.mode(model, "full"), torch.no_grad():
        model(ids, use_cache=use_cache, **ways[0])


@pytest.mark.parametrize("mode", ["soft", "hard"])
def test_positions_of_one_text_are_no_packed_sequences(mode: str) -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(1, 40)
    mask = torch.ones(1, 40, dtype=torch.long)
    mask[:, :6] = mask[:, 37:] = 0
    positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, 1)
    with focus.mode(model, mode), torch.no_grad():
        expected = model(ids, position_ids=torch.arange(40)[None]).logits
        assert torch.equal(model(ids).logits, expected)
        model(ids, position_ids=positions, attention_mask=mask)
        pair = {"position_ids": positions, "attention_mask": mask.expand(2, -1)}
        model(ids.expand(2, -1), **pair)
        bounds = torch.tensor([0, 40])
        model(ids, position_ids=torch.arange(40)[None], cu_seq_lens_q=bounds)
        with pytest.raises(ValueError, match="covers 39 tokens where"):
            model(ids, position_ids=positions, attention_mask=mask[:, 1:])
        mask[:, 20:23] = 0
        with pytest.raises(ValueError, match="padding between real tokens"):
            model(ids, position_ids=positions, attention_mask=mask)


@pytest.mark.parametrize("mode", ["soft", "hard"])
def test_what_is_given_by_place_is_known_by_name(mode: str) -> None:
    """Of a decoder that is called as one: its causal model passes names on."""
    model = focus.attach(tiny("tiny-llama"), CONFIG, seed=0)
    decoder = model.model
    ids, ones = token_ids(1, 40), torch.ones(1, 40, dtype=torch.long)
    one_row = torch.ones(1, 1, 1, 40, dtype=torch.bool)
    with focus.mode(model, mode), torch.no_grad():
        whole = decoder(ids, ones, torch.arange(40)[None], use_cache=False)[0]
        assert torch.equal(whole, decoder(ids, use_cache=False)[0])
        with pytest.raises(ValueError, match="several texts in one row"):
            decoder(ids, ones, torch.arange(20).repeat(2)[None], use_cache=False)
        with pytest.raises(ValueError, match="a 4D mask of one row"):
            decoder(ids, one_row, use_cache=False)


@pytest.mark.parametrize("padding", [0, 7])
def test_positions_go_on_where_the_cache_ends(padding: int) -> None:
    model, ids = focus.attach(tiny("tiny-llama"), CONFIG, seed=0), token_ids(2, 60)
    mask = torch.ones_like(ids)
    mask[0, :padding] = 0
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    told = {"attention_mask": mask} if padding else {}
    with torch.no_grad():
        expected = model(ids, position_ids=positions, use_cache=False, **told).logits[:, 40:]
        first = {name: each[:, :40] for name, each in told.items()}
        cache = model(ids[:, :40], position_ids=positions[:, :40], **first).past_key_values
        with pytest.raises(ValueError, match=r"^position_ids: begin at 0 where the cache holds 40"):
            model(ids[:, 40:], position_ids=torch.arange(20)[None], past_key_values=cache, **told)
        parts = [
            model(ids[:, a:b], position_ids=positions[:, a:b], past_key_values=cache, **told)
            for a, b in ((40, 50), (50, 60))
        ]  # the mask may cover later tokens, too
    found = torch.cat([part.logits for part in parts], 1)
    assert torch.allclose(found, expected, atol=1e-4)
