"""What is for CUDA alone is rehearsed here; kernels share their work out between two threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attention.rehearsal import rehearsed
from tests.threads import threads


@pytest.fixture(autouse=True)
def kernels_are_rehearsed() -> Iterator[None]:
    with rehearsed():
        yield


@pytest.fixture(autouse=True)
def two_threads_share() -> Iterator[None]:
    with threads(2):
        yield
