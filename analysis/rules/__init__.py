"""Rules of the claims ledger. Importing the package registers all of them."""

from analysis.rules import (
    arithmetic,
    bounds,
    consistency,
    controls,
    copying,
    exactness,
    identity,
    leak,
    seeds,
    speed,
    topk,
)
from analysis.rules.registry import (
    ARITHMETIC,
    DIRECTION,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    VERDICTS,
    Outcome,
    decide,
    rule,
)
