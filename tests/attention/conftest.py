"""What is for CUDA alone is rehearsed here; kernels share their work out between two threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.attention.rehearsal import rehearsed


@pytest.fixture(autouse=True)
def kernels_are_rehearsed() -> Iterator[None]:
    with rehearsed():
        yield


@pytest.fixture(autouse=True)
def two_threads_share() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
