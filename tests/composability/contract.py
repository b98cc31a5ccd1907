"""What users run an attached model with, and what each of the three modes must then give.

A cell either gives the plain result (bit for bit, or within the tolerance that stands here) or
raises an error that names what is refused: there is no third kind. ``python -m
tests.composability.contract`` writes the table into docs/support.md; a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "support.md"
START, END = "<!-- contract: start -->", "<!-- contract: end -->"
MODES = ("soft", "hard", "full")


@dataclass(frozen=True)
class Equal:
    """The result is the plain one; ``tolerance``: greatest difference of a logit or gradient,
    relative to the largest; 0: bit for bit."""

    tolerance: float = 0.0

    def __str__(self) -> str:
        return "equal" if not self.tolerance else f"within {self.tolerance:g}"


@dataclass(frozen=True)
class Refused:
    """A ValueError (or what the client makes of it) whose message holds ``names``."""

    names: str
    why: str

    def __str__(self) -> str:
        return f"refused: {self.why}"


Cell = Equal | Refused
EXACT, ROUNDING, HALF = Equal(), Equal(1e-5), Equal(8e-2)
NO_CACHE = Refused("soft mode cannot continue", "the training gate has no cache")
STATIC = Refused("tatic", "use the default dynamic cache")

# client: what it is, and its cell in soft, hard and full mode
CONTRACT: dict[str, tuple[str, tuple[Cell, Cell, Cell]]] = {
    "autocast_bfloat16": ("`torch.autocast` in bfloat16 (`Trainer(bf16=True)`), logits and the "
                          "routers' gradients", (HALF, HALF, EXACT)),
    "autocast_float16": ("the same in float16 (`Trainer(fp16=True)`)", (HALF, HALF, EXACT)),
    "weights_bfloat16": ("bfloat16 weights, cast before or after `attach`", (HALF, HALF, EXACT)),
    "weights_float16": ("float16 weights, cast before or after `attach`", (HALF, HALF, EXACT)),
    "checkpointing": ("gradient checkpointing, not reentrant; backward outside of the `with`",
                      (ROUNDING, ROUNDING, EXACT)),
    "checkpointing_reentrant": ("gradient checkpointing, reentrant",
                                (ROUNDING, ROUNDING, EXACT)),
    "compile": ("`torch.compile`", (ROUNDING, ROUNDING, ROUNDING)),
    "ddp": ("DistributedDataParallel, two processes, half of the batch each",
            (ROUNDING, ROUNDING, ROUNDING)),
    "fsdp2": ("FSDP2 (`fully_shard`), two processes", (ROUNDING, ROUNDING, ROUNDING)),
    "peft_before": ("LoRA on the model, then `attach`", (EXACT, EXACT, EXACT)),
    "peft_after": ("`attach`, then LoRA", (EXACT, EXACT, EXACT)),
    "quantised": ("weights in 4 bits (bitsandbytes), LoRA beside the routers (QLoRA)",
                  (ROUNDING, ROUNDING, EXACT)),
    "swapped": ("two LoRA and two Focus adapters on one model, switched between calls",
                (EXACT, EXACT, EXACT)),
    "deepcopy": ("`copy.deepcopy`", (EXACT, EXACT, EXACT)),
    "new_process": ("`torch.save`, then `torch.load` in a new process", (EXACT, EXACT, EXACT)),
    "save_pretrained": ("`save_pretrained` of an attached model, loaded again as the base model",
                        (EXACT, EXACT, EXACT)),
    "two_threads": ("two threads, each with a mode of its own", (EXACT, EXACT, EXACT)),
    "offload": ("accelerate: weights offloaded to the CPU's memory, logits and generation",
                (EXACT, EXACT, EXACT)),
    "trainer": ("`Trainer` with `FocusCallback`: two steps, and evaluation",
                (ROUNDING, ROUNDING, ROUNDING)),
    "padded_batch": ("a padded batch, rows padded on the left and on the right",
                     (ROUNDING, ROUNDING, ROUNDING)),
    "pipeline": ("`pipeline('text-generation')`", (NO_CACHE, EXACT, EXACT)),
    "lm_eval_batch_1": ("lm-eval's `HFLM`, batch 1", (ROUNDING, ROUNDING, ROUNDING)),
    "lm_eval_batch_8": ("lm-eval's `HFLM`, batch 8, different lengths",
                        (ROUNDING, ROUNDING, ROUNDING)),
    "beams": ("beam search", (NO_CACHE, EXACT, EXACT)),
    "assisted": ("assisted generation", (NO_CACHE, EXACT, EXACT)),
    "streamer": ("a streamer, `generate` in a thread with `copy_context`",
                 (NO_CACHE, EXACT, EXACT)),
    "static_cache": ("`cache_implementation='static'`", (NO_CACHE, STATIC, EXACT)),
}  # fmt: skip


def table() -> str:
    """The contract as a Markdown table."""
    rows = ["| with | soft | hard | full |", "| --- | --- | --- | --- |"]
    for what, cells in CONTRACT.values():
        rows.append(f"| {what} | " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(rows)


def rendered(page: str) -> str:
    """The page with the table of today."""
    before, rest = page.split(START)
    return f"{before}{START}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
