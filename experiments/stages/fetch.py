"""Brings sources to data/sources/.

`python -m experiments.stages.fetch [NAME ...]`: without names, what the experiments of
`make reproduce` need (and what `fetch.also` names). A name is that of a source, of a text, or of an
experiment, which takes all that it needs.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from experiments import plans, settings, sources
from experiments.settings import Settings


def main(arguments: list[str] | None = None) -> int:
    """Fetches; exit status 1 and what to do where a source cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="what to fetch instead of what the core needs")
    parser.add_argument("--list", action="store_true", help="show the sources and stop")
    options = parser.parse_args(arguments)
    try:
        chosen, listed = settings.load(), sources.sources()
        if options.list:
            show(listed)
            return 0
        named = [each for name in options.names for each in meant(name, chosen)]
        for name in dict.fromkeys(named or needed(chosen)):
            source = sources.find(name, listed)
            sources.fetch(source, allow_unpinned=chosen.fetch.allow_unpinned)
    except ValueError as error:
        print(f"fetch: {error}", file=sys.stderr)
        return 1
    return 0


def needed(chosen: Settings) -> list[str]:
    """Names of the sources of the core's experiments and of ``fetch.also``, in a fixed order."""
    found = [source for block in chosen.core for source in of_experiment(block, chosen)]
    return list(dict.fromkeys([*found, *chosen.fetch.also]))


def meant(name: str, chosen: Settings) -> list[str]:
    """Names of the sources that a name stands for: a source's own, else a text's with those that
    it is kept apart from, else an experiment's."""
    if name in sources.sources():
        return [name]
    if name in chosen.texts:
        return of_texts(plans.texts([name], chosen))
    return of_experiment(name, chosen) if name in chosen.experiments else [name]


def of_experiment(block: str, chosen: Settings) -> list[str]:
    """Names of the sources that an experiment needs."""
    wanted = plans.of_data(block, chosen)
    return [*wanted["models"], *wanted["benchmarks"], *of_texts(wanted["texts"])]


def of_texts(texts: dict[str, Any]) -> list[str]:
    """Names of the sources of texts."""
    return sorted({text["source"] for text in texts.values()})


def show(listed: dict[str, sources.Source]) -> None:
    """Prints the list, one source a line."""
    for source in listed.values():
        where = f"{source.package} {source.version}" if source.package else source.repo
        pinned = "" if source.pinned else " (not pinned)"
        print(f"{source.name:26} {source.role:10} {where}{pinned}: {source.what}")


if __name__ == "__main__":
    sys.exit(main())
