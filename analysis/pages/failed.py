"""What did not work: its sentences stand in failed.md.jinja, its figures come from result files."""

from __future__ import annotations

from contextlib import suppress

from analysis.comparisons import MAIN_READING, versus
from analysis.pages import findings
from analysis.pages.words import percent
from analysis.results import Results
from analysis.rows import Missing, need
from analysis.tables import markdown

SOURCE = "failed.md.jinja"
LONGEST = "long_8192"  # the reading of the longest texts


def failed(results: Results) -> str:
    """What did not work; a line without its results is left out."""
    made, told = findings.environment(results, []), []
    for text in findings.source(SOURCE).splitlines():
        with suppress(Missing):
            told.append(made.from_string(text).render())
    return "\n".join(need(told))


def sharing(results: Results) -> str:
    """What groups per head change, beside heavy hitters for every head: a row each measurement."""
    pairs = [("allocated", "heavy_untrained", MAIN_READING),
             ("long_longer_allocated", "long_longer_heavy", LONGEST)]  # fmt: skip
    if not {name for pair in pairs for name in pair[:2]} <= set(results.cells):
        raise Missing
    told = []
    for *names, reading in pairs:
        one, other = (results.cells[name] for name in names)
        rows = [row for row in versus(results, one, other) if row["reading"] == reading]
        told += [[f"{int(row['context']):,}", f"{row['distant_density']:.0%}", percent(row)]
                 for row in rows]  # fmt: skip
    head = ["tokens", "distant pairs", "groups per head, against the same number for all"]
    return "\n".join(markdown(head, told, "rrr"))
