"""Brings sources to data/sources/, by name; what an experiment needs the stage `data` brings.

`python -m experiments.stages.fetch [NAME ...]`: without names, shows what there is.
"""

from __future__ import annotations

import argparse
import sys

from experiments import sources
from experiments.command import reported


@reported("fetch")
def main(arguments: list[str] | None = None) -> None:
    """The command line of the stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of sources.yaml, or folders of FOCUS_DATA")
    names = parser.parse_args(arguments).names
    listed = sources.sources()
    for name in names:
        sources.fetch(sources.find(name, listed))
    for source in () if names else listed.values():
        where = f"{source.package} {source.version}" if source.package else source.repo
        print(f"{source.name:26} {source.role:10} {where}: {source.what}")


if __name__ == "__main__":
    sys.exit(main())
