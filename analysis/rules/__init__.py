"""Rules of the claims ledger. Importing the package registers all of them."""

from analysis.rules import (
    ablations,
    answers,
    bounds,
    contents,
    counted,
    dominance,
    headline,
    lora,
    models,
    own,
    pairs,
    rivals,
    ruler,
    speed,
    stability,
    table7,
)
from analysis.rules.registry import RULES, Outcome, Verdict, decide, rule
