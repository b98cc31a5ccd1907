"""The registry of rules: a pattern of claim ids -> a function from result files to a verdict."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from analysis import scope
from analysis.paper import Claim
from analysis.results import Results
from analysis.rivals import EQUAL
from analysis.rows import Missing, ends_of
from analysis.words import ranged
from experiments.settings import Tolerances


class Verdict(StrEnum):
    """What can be said of a claim."""

    REPRODUCED = "reproduced"
    DIRECTION = "reproduced at reduced scale (direction only)"
    NOT_REPRODUCED = "not reproduced"
    CONTRADICTS = "contradicts itself"  # the paper's figures, each other
    ARITHMETIC = "holds by arithmetic"
    INCONCLUSIVE = "inconclusive"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Outcome:
    """What a rule says about one claim.

    ours, low, high: our figure with its interval; unit: of a change, where it is one; n: what the
    interval is over (documents, cases, repetitions). `same_setting` is the only way to a plain
    "reproduced": the rule has checked that nothing was reduced.
    """

    verdict: Verdict
    why: str
    ours: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str | None = None
    n: int | None = None
    evidence: str | None = None
    command: str | None = None
    scale: str | None = None
    same_setting: bool = False

    @classmethod
    def of(cls, verdict: Verdict, why: str, row: Any, results: Results, value: str = "change",
           n: str = "documents", scale: str = "",
           same_setting: bool = False) -> Outcome:  # fmt: skip
        """Of a row of a table of cells: a value with its interval, and where it comes from."""
        known = interval(row, value) | facts(row, results, n, scale)
        return cls(verdict, why, **known, same_setting=same_setting)

    def __post_init__(self) -> None:
        Verdict(self.verdict)  # ValueError where there is no such verdict
        if self.verdict == Verdict.REPRODUCED and not self.same_setting:
            raise ValueError(
                "verdict: a run at another scale than the paper's cannot be plainly 'reproduced'; "
                f"say {Verdict.DIRECTION!r}"
            )


Judge = Callable[..., Outcome]


@dataclass(frozen=True)
class Rule:
    """A judge of claims.

    Attributes:
        judge: gets what it asks for by name, of the claim, the results, the limits (tolerances) and
            the parts of the id; raises Missing where it has no result file to judge from.
        refuted: the outcome that would refute the claim, which every judge can reach.
    """

    pattern: re.Pattern[str]
    judge: Judge
    refuted: str


RULES: list[Rule] = []


def rule(*patterns: str, refuted: str) -> Callable[[Judge], Judge]:
    """Register a judge for claim ids; `{name}` in a pattern stands for one part of the id."""

    def register(judge: Judge) -> Judge:
        for pattern in patterns:
            text = re.escape(pattern).replace(r"\{", "{").replace(r"\}", "}")
            found = re.compile(re.sub(r"{(\w+)}", r"(?P<\1>.+?)", text))
            RULES.append(Rule(found, judge, refuted))
        return judge

    return register


def matching(claim_id: str) -> list[tuple[Rule, dict[str, str]]]:
    """The rules that judge this id, with the parts of the id by the names in their patterns."""
    found = [(each, each.pattern.fullmatch(claim_id)) for each in RULES]
    return [(each, match.groupdict()) for each, match in found if match]


def decide(claim: Claim, results: Results, limits: Tolerances) -> Outcome | None:
    """The first outcome that a rule can give, None where no rule has a result file."""
    known = {"claim": claim, "results": results, "limits": limits}
    for each, parts in matching(claim.id):
        asked = inspect.signature(each.judge).parameters
        given = {name: value for name, value in (known | parts).items() if name in asked}
        with suppress(Missing):
            return _without_weight(each.judge(**given))
    return None


def _without_weight(outcome: Outcome) -> Outcome:
    """A smoke run, or one on random weights, settles nothing but identities."""
    scale = outcome.scale or ""
    empty = scale.startswith("smoke") or "; tiny-" in scale
    if not empty or outcome.verdict in (Verdict.ARITHMETIC, Verdict.CONTRADICTS):
        return outcome
    why = f"a smoke run or random weights, too little to judge from; it saw: {outcome.why}"
    return dataclasses.replace(outcome, verdict=Verdict.INCONCLUSIVE, why=why)


def agree(ours: float, paper: float, relative: float) -> bool:
    """Whether two figures agree within a relative tolerance."""
    return abs(ours - paper) <= relative * abs(paper)


def told(good: bool, bad: bool, holds: Verdict = Verdict.DIRECTION) -> Verdict:
    """``holds`` where something speaks for a claim, refuted where against it, else open."""
    return holds if good else Verdict.NOT_REPRODUCED if bad else Verdict.INCONCLUSIVE


def judged(low: float, high: float, limit: float) -> Verdict:
    """A statement that something lies below a limit, by its interval."""
    return told(high <= limit, low > limit, Verdict.REPRODUCED)


def agreed(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of several ways to look at one thing, open where they differ."""
    every = set(verdicts)
    return every.pop() if len(every) == 1 else Verdict.INCONCLUSIVE


def fair(verdict: Verdict, more: float) -> Verdict:
    """The same, but for a win of the side that keeps more distant pairs; ``more``: by how many, of
    all, the side does that a verdict in favour is for."""
    won = {Verdict.REPRODUCED: more, Verdict.NOT_REPRODUCED: -more}.get(verdict, 0.0)
    return Verdict.INCONCLUSIVE if won > EQUAL else verdict


EARLY = ", after far fewer steps"


def around(ours: Mapping[str, float], paper: float, limit: float, few: bool) -> tuple[Verdict, str]:
    """What an interval says of the paper's figure: against it where it lies wholly further from it
    than the limit, but for a run of fewer steps than the paper's; then words that say so."""
    within = paper - limit <= ours["low"] and ours["high"] <= paper + limit
    return unless(few, within, ours["high"] < paper - limit or ours["low"] > paper + limit)


def unless(few: bool, good: bool, bad: bool) -> tuple[Verdict, str]:
    """:func:`told`, but that fewer steps than the paper's refute nothing; then words of that."""
    return told(good, bad and not few), EARLY * (bad and few)


def facts(row: Mapping[str, Any], results: Results, n: str = "documents",
          scale: str = "") -> dict[str, Any]:  # fmt: skip
    """Evidence, command, n and scale of a row of a table of cells, as an Outcome takes them.

    Args:
        n: the column that counts what the interval is over; ``scale``: instead of the run's own.
    """
    evidence, cell = str(row["evidence"]), results.cells[str(row["cell"])]
    texts = row.get("texts") or ""
    texts = texts if isinstance(texts, str) else " and ".join(texts)
    scale = scale or scope.describe(results, cell, evidence, texts)
    if isinstance(mixed := row.get("formats"), str) and mixed:
        scale += f"; {mixed}"
    return {"n": int(row[n]), "evidence": evidence, "command": f"dvc repro read@{cell.block}",
            "scale": scale}  # fmt: skip


def changed(row: Mapping[str, Any]) -> str:
    """A change of perplexity with its interval, in words."""
    return ranged(row, "change", "+.1%")


def points(row: Any, value: str = "points", digits: int = 1) -> str:
    """A difference in points with its interval, in words."""
    return ranged(row, value, f"+.{digits}f", " points")


UNITS = {
    "change": "percent more or less", "points": "points more or less",
    "beyond": "points more or less", "speedup": "times as fast", "ratio": "times as fast",
    "largest": "percent of the tokens", "agreement": "share of the tokens",
    "copied": "percent of full attention's gain", "changed": "percent of the assignments",
    "weight_shared": "percent of the weight",
}  # fmt: skip


SHARES = ("change", "changed", "copied")  # told in percent


def interval(row: Any, value: str = "change") -> dict[str, Any]:
    """A value with its interval, in percent where it is a share, as an Outcome takes it."""
    ends = zip(("ours", "low", "high"), (value, *ends_of(row, value)), strict=True)
    scale = 100 if value in SHARES else 1
    return {**{end: scale * float(row[name]) for end, name in ends}, "unit": UNITS.get(value)}


COUNTED = {"command": "python -m analysis", "scale": "any: counted, not run"}
