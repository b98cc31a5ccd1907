"""The measurements of the whole model, which name experiments of params.yaml."""

from __future__ import annotations

from typing import Any


def untrained(params: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """They as params.yaml has them, with random routers, for a file of other experiments."""
    return {stage: {**params[stage], "experiments": [], **changes}
            for stage in ("prefill", "continuation")}  # fmt: skip
