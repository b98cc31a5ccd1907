"""Rules of the claims ledger. Importing the package registers all of them."""

from analysis.rules import (
    benchmarks,
    bounds,
    controls,
    counted,
    exactness,
    headline,
    identity,
    leak,
    rivals,
    speed,
    table7,
)
from analysis.rules.registry import RULES, Outcome, Verdict, decide, rule
