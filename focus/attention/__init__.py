"""Attention paths of Focus: the dense definition and the fast paths that equal it."""

from focus.attention.api import focus_attention
from focus.attention.dense import dense_attention

__all__ = ["dense_attention", "focus_attention"]
