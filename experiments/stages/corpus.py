"""Documents of one text, cleaned and on three sides: data/texts/<name>/.

`python -m experiments.stages.corpus NAME`, with a name under `texts` in params.yaml.
"""

from __future__ import annotations

import argparse
import sys

from experiments import settings
from experiments.texts import corpus


def main(arguments: list[str] | None = None) -> int:
    """Writes the text; exit status 1 and the reason where it cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="under texts in params.yaml")
    name = parser.parse_args(arguments).name
    try:
        manifest = corpus.build(name, settings.load())
    except ValueError as error:
        print(f"corpus: {error}", file=sys.stderr)
        return 1
    for side, part in manifest["sides"].items():
        (count, many), (size, much) = list(part.items())[:2]
        print(f"corpus: {name}: {side}: {many} {count}, {much:,} {size}")
    print(f"corpus: {name}: left out {manifest['too_short']} documents that are too short")
    for item in manifest["left_out"]:
        print(f"corpus: {name}: left out {item['title']}: {item['reason']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
