"""Focus: learned grouping for sparse, causal attention on frozen language models.

After arXiv 2604.03260. ``attach`` adds routers to a transformers causal LM, ``mode`` switches
between the training gate, the hard mask and the pretrained model, ``focus_attention`` is the exact
attention behind the hard mask.
"""

from focus.adapter import load_adapter, save_adapter
from focus.attention import dense_attention, focus_attention
from focus.cache import FocusCache
from focus.config import FocusConfig
from focus.huggingface import (
    attach,
    density,
    detach,
    memberships,
    mode,
    pair_counts,
    trainable_parameters,
)
from focus.initial import initialise
from focus.routing import Memberships, Router

__version__ = "0.1.0"

__all__ = [
    "FocusCache",
    "FocusConfig",
    "Memberships",
    "Router",
    "attach",
    "dense_attention",
    "density",
    "detach",
    "focus_attention",
    "initialise",
    "load_adapter",
    "memberships",
    "mode",
    "pair_counts",
    "save_adapter",
    "trainable_parameters",
]
