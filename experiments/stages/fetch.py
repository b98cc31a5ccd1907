"""Brings the sources that params.yaml needs to data/sources/.

`python -m experiments.stages.fetch [NAME ...]`: without names, what the model and the corpus of
params.yaml need (and what `fetch.also` names).
"""

from __future__ import annotations

import argparse
import sys

from experiments import settings as settings_module
from experiments import sources


def main(arguments: list[str] | None = None) -> int:
    """Fetches; exit status 1 and what to do where a source cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="sources to fetch instead of those needed")
    parser.add_argument("--list", action="store_true", help="show the sources and stop")
    options = parser.parse_args(arguments)
    try:
        settings = settings_module.load()
        listed = sources.sources()
        if options.list:
            show(listed)
            return 0
        for name in options.names or sources.needed(settings):
            source = sources.find(name, listed)
            sources.fetch(source, allow_unpinned=settings.fetch.allow_unpinned)
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
