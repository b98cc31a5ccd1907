"""Rules of the claims ledger. Importing the package registers all of them."""

from analysis.rules import (
    ablations,
    architectures,
    benchmarks,
    bounds,
    chat,
    contents,
    controls,
    counted,
    exactness,
    finetuning,
    gpu,
    headline,
    identity,
    ladder,
    leak,
    lengths,
    lora,
    rivals,
    ruler,
    scores,
    speed,
    stability,
    table7,
)
from analysis.rules.registry import RULES, Outcome, Verdict, decide, rule
