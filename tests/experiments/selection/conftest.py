"""One thread: on models as tiny as these, threads spend their time waiting for each other."""

from tests.experiments.methods.conftest import one_thread  # noqa: F401 - a fixture
