"""What is for CUDA alone is rehearsed here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attention.rehearsal import rehearsed


@pytest.fixture(autouse=True)
def kernels_are_rehearsed() -> Iterator[None]:
    with rehearsed():
        yield
