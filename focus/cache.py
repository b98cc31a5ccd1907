"""Focus's key/value cache for transformers' ``generate``.

In hard mode each routed layer's empty place in a dynamic cache, one of the model's own or a
:class:`FocusCache`, is taken by a :class:`FocusCacheLayer`, so that reordering, cropping and
selecting move all that belongs to a token together.
"""

from __future__ import annotations

from typing import Any

from transformers import DynamicCache, cache_utils
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from focus.cache_layer import CURE, OFFLOADED, FocusCacheLayer

REPLACED = (DynamicLayer, DynamicSlidingWindowLayer)
SOFT = "focus_soft"  # set on a cache that soft mode has filled
# In the place of a layer that uses another one's keys and values; some versions have none.
DUMMY = getattr(cache_utils, "DummyLayer", None)


class FocusCache(DynamicCache):
    """A key/value cache for an attached model: ``past_key_values=focus.FocusCache()``; from
    transformers 5.24 on also ``cache=``.

    It grows with the text and works in every mode and way to generate; what one mode has filled,
    that mode alone continues. A plain ``DynamicCache``, which ``generate`` makes by itself, does as
    well.

    Args:
        config: of the model; needed only for the layers that have a sliding window of their own
            and stay as they are (Gemma-2), which then keep no more than it.
    """

    def __init__(self, config: Any = None) -> None:
        super().__init__(config=config)


def adopt(cache: Any, index: int) -> FocusCacheLayer:
    """The cache's layer ``index``; a :class:`FocusCacheLayer` takes the place of an empty one.
    Caches of another kind, or filled without Focus's groups, are refused."""
    layers = getattr(cache, "layers", None)
    if layers is None:
        raise ValueError(_unsupported(type(cache).__name__))
    if index < len(layers) and isinstance(layers[index], FocusCacheLayer):
        return layers[index]
    if getattr(cache, "offloading", False):
        raise ValueError(OFFLOADED)
    # Of layers that use another one's keys, transformers 5.17 knows no place.
    kind = getattr(cache, "layer_class_to_replicate", None) or DynamicLayer
    while len(layers) <= index:
        layers.append(kind())
    layer = layers[index]
    if type(layer) is DUMMY:  # under Focus it has keys of its own: their groups are
        layer = DynamicLayer()
    if type(layer) not in REPLACED:
        raise ValueError(_unsupported(type(layer).__name__))
    if layer.get_seq_length():
        raise ValueError(
            "past_key_values: this cache was filled in another mode, so the groups of its tokens "
            "are not known; fill it in hard mode, or continue in the mode that filled it (peft's "
            "prefix tuning fills it, too: use LoRA)"
        )
    layers[index] = FocusCacheLayer(layer)
    return layers[index]


def release(cache: Any, index: int, mode: str) -> None:
    """For ``soft`` and ``full`` mode puts the cache's own layer back where a
    :class:`FocusCacheLayer` is still empty, and notes what soft mode fills; refuses to continue
    what hard mode has filled, or in full mode what soft mode has."""
    layers = getattr(cache, "layers", None)
    if layers is None:
        return
    layer = layers[index] if index < len(layers) else None
    ours, softly = isinstance(layer, FocusCacheLayer), getattr(cache, SOFT, False)
    if not (ours or softly or mode == "soft"):
        return  # to tell its length, a static cache would wait for its device
    if layer is None or not layer.get_seq_length():
        setattr(cache, SOFT, mode == "soft")
        if isinstance(layer, FocusCacheLayer):
            layers[index] = layer.replaced
    elif ours or (softly and mode == "full"):
        raise ValueError(
            f"past_key_values: this cache was filled in {'hard' if ours else 'soft'} mode, from "
            f"which {mode} mode cannot continue; start with a new cache"
        )


def _unsupported(name: str) -> str:
    return f"past_key_values: {name} is not supported by Focus in hard mode; {CURE}"
