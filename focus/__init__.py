"""Focus: learned grouping for sparse, causal attention on frozen language models.

After arXiv 2604.03260. ``attach`` adds routers to a transformers causal LM, ``mode`` switches
between the training gate, the hard mask and the pretrained model, ``focus_attention`` is the exact
attention behind the hard mask.
"""

from focus.adapter import (
    adapters,
    delete_adapter,
    load_adapter,
    save_adapter,
    set_adapter,
)
from focus.allocation import allocate_groups
from focus.attention import dense_attention, focus_attention
from focus.cache import FocusCache
from focus.config import FocusConfig
from focus.density import PairCounts
from focus.groups import Memberships
from focus.heavy import find_heavy_hitters
from focus.hub import FocusAdapter
from focus.model import (
    attach,
    density,
    detach,
    memberships,
    pair_counts,
    trainable_parameters,
)
from focus.modes import mode
from focus.routing import Router
from focus.schedule import recipe_schedule
from focus.version import __version__

__all__ = [
    "FocusAdapter",
    "FocusCache",
    "FocusConfig",
    "Memberships",
    "PairCounts",
    "Router",
    "adapters",
    "allocate_groups",
    "attach",
    "delete_adapter",
    "dense_attention",
    "density",
    "detach",
    "find_heavy_hitters",
    "focus_attention",
    "load_adapter",
    "memberships",
    "mode",
    "pair_counts",
    "recipe_schedule",
    "save_adapter",
    "set_adapter",
    "trainable_parameters",
]
