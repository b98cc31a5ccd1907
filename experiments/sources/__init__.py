"""What comes from where: the pinned list of texts, benchmarks and weights, and how they get to
data/sources/<name>/. Models are loaded by name with ``experiments.sources.models``."""

from experiments.sources.catalogue import (
    ROOT,
    Source,
    find,
    override,
    sources,
)
from experiments.sources.fetching import fetch
from experiments.sources.packages import SourceError
