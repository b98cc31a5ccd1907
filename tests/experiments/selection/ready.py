"""Methods of a tiny model, calibrated."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from experiments import registry
from experiments.methods.base import built
from tests.experiments.methods.reference import words
from tests.models import tiny

NEAR = {"window": 8, "sinks": 2}


def ready(name: str, tokens: int = 300, **fields: Any) -> tuple[PreTrainedModel, Any]:
    model = tiny("tiny-llama")
    method = built(registry.find("method", name), {**NEAR, **fields}, seed=1)
    method.install(model)
    method.calibrate(model, [words(1, tokens, seed=s) for s in (8, 9)])
    return model.eval(), method
