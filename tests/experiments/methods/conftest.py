"""One thread: on models as tiny as these, threads spend their time waiting for each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.threads import threads


@pytest.fixture(autouse=True, scope="package")
def one_thread(two_threads: None) -> Iterator[None]:
    with threads(1):
        yield
