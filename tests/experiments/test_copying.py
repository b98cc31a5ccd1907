"""Windows that hold a passage twice, and the share of it that a mask finds."""

from __future__ import annotations

import pytest
import torch

from experiments import copying
from experiments.data import Document
from experiments.evaluation import DocumentScore
from experiments.recipe_settings import CopyingSettings
from experiments.settings import BootstrapSettings

HOW = CopyingSettings(("any",), context=50, documents=2, passage=10, lead=2, distances=(15, 40))
BOOTSTRAP = BootstrapSettings(samples=200)


def test_the_window_ends_in_what_stood_before_at_that_distance() -> None:
    document = Document("numbers", torch.arange(60))
    seen, new = copying.windows(document, HOW)
    assert seen.shape == new.shape == (2, 50)
    for window, other, distance in zip(seen, new, HOW.distances, strict=True):
        first = slice(40 - distance, 50 - distance)
        assert torch.equal(window[:40], document.tokens[:40])
        assert torch.equal(window[40:], window[first])
        assert torch.equal(other[40:], window[40:])
        assert torch.equal(other[first], document.tokens[50:])  # new: it is nowhere before the end
        assert not set(other[40:].tolist()) & set(other[:40].tolist())
    assert torch.equal(document.tokens, torch.arange(60))


def test_a_document_that_is_too_short_is_named() -> None:
    with pytest.raises(ValueError, match=r"^copying.context: 60 tokens are needed of brief,"):
        copying.windows(Document("brief", torch.arange(59)), HOW)


def scores(*nll: float) -> list[DocumentScore]:
    return [DocumentScore(str(n), each, 8) for n, each in enumerate(nll)]


def test_the_share_found_lies_between_new_and_seen() -> None:
    seen, new = scores(2.0, 4.0), scores(10.0, 24.0)
    share = copying.found(scores(4.0, 10.0), seen, new, BOOTSTRAP, 0)
    assert share.value == pytest.approx((6 + 14) / (8 + 20))
    assert share.low == pytest.approx(0.7)  # the second document alone
    assert share.high == pytest.approx(0.75)
    assert copying.found(seen, seen, new, BOOTSTRAP, 0).value == 1
    assert copying.found(new, seen, new, BOOTSTRAP, 0).value == 0


def test_distances_are_added_up_document_by_document() -> None:
    near = {"kind": "routed", "density": 0.2, "distant_density": 0.1, "K": 4,
            "scores": [{"title": "a", "nll": 1.0, "tokens": 8}]}  # fmt: skip
    far = {**near, "density": 0.4, "K": 5, "scores": [{"title": "a", "nll": 2.5, "tokens": 8}]}
    (row,) = copying.together([[near], [far]])
    assert row["scores"] == [{"title": "a", "nll": 3.5, "tokens": 16}]
    assert row["density"] == pytest.approx(0.3)
    assert (row["kind"], row["K"]) == ("routed", None)


def test_other_documents_are_refused() -> None:
    with pytest.raises(ValueError, match="the same documents and tokens on all sides"):
        copying.found(scores(1.0, 2.0), scores(1.0), scores(3.0), BOOTSTRAP, 0)
