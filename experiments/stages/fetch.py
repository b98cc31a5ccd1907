"""Brings sources to data/sources/.

`python -m experiments.stages.fetch [NAME ...]`: without names, what the experiments of
`make reproduce` need (and what `fetch.also` names). A name is that of a source, of a text, or of an
experiment, which takes all that it needs.
"""

from __future__ import annotations

import argparse
import sys

from experiments import settings, sources


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
        named = [each for name in options.names for each in sources.of_name(name, chosen, listed)]
        for name in dict.fromkeys(named or sources.needed(chosen)):
            source = sources.find(name, listed)
            sources.fetch(source, allow_unpinned=chosen.fetch.allow_unpinned)
    except ValueError as error:
        print(f"fetch: {error}", file=sys.stderr)
        return 1
    return 0


def show(listed: dict[str, sources.Source]) -> None:
    """Prints the list, one source a line."""
    for source in listed.values():
        where = f"{source.package} {source.version}" if source.package else source.repo
        pinned = "" if source.pinned else " (not pinned)"
        print(f"{source.name:26} {source.role:10} {where}{pinned}: {source.what}")


if __name__ == "__main__":
    sys.exit(main())
