"""The clients of the contract: each runs an attached model its own way and gives (found, plain)."""

from __future__ import annotations

from collections.abc import Callable

from tests.composability.clients.adapters import peft_after, peft_before, swapped
from tests.composability.clients.casts import (
    autocast_bfloat16,
    autocast_float16,
    weights_bfloat16,
    weights_float16,
)
from tests.composability.clients.copies import (
    deepcopy,
    new_process,
    offload,
    save_pretrained,
    two_threads,
)
from tests.composability.clients.made import Found
from tests.composability.clients.quantised import quantised
from tests.composability.clients.text import (
    assisted,
    beams,
    lm_eval_batch_1,
    lm_eval_batch_8,
    padded_batch,
    pipeline,
    static_cache,
    streamer,
)
from tests.composability.clients.training import (
    checkpointing,
    checkpointing_reentrant,
    compile,
    ddp,
    fsdp2,
    trainer,
)

CLIENTS: dict[str, Callable[[str], Found]] = {
    each.__name__: each
    for each in (
        autocast_bfloat16, autocast_float16, weights_bfloat16, weights_float16, checkpointing,
        checkpointing_reentrant, compile, ddp, fsdp2, peft_before, peft_after, quantised, swapped,
        deepcopy, new_process, save_pretrained, two_threads, offload, trainer, padded_batch,
        pipeline, lm_eval_batch_1, lm_eval_batch_8, beams, assisted, streamer, static_cache,
    )
}  # fmt: skip
