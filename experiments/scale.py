"""`python -m experiments.scale NAME`: lays the default, then scales/NAME.yaml over params.yaml.

It does so only where params.yaml is at another scale, so that a user's own edits at the present
scale survive. Comments and order stay. scales/laptop.yaml names every setting that another overlay
sets, so that the way back restores it; settings that no overlay names are never touched.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from experiments import settings
from experiments.record import write_text
from experiments.schema import join, read_yaml

FOLDER = Path("scales")
DEFAULT = "laptop"


def apply(name: str, params: Path = Path("params.yaml"), folder: Path = FOLDER) -> bool:
    """Brings params.yaml to a scale; whether anything had to change.

    Raises:
        ValueError: no such scale, an overlay names a setting that params.yaml does not have, or
            the outcome is no valid params.yaml (which is then left as it was).
    """
    if name not in settings.SCALES:
        raise ValueError(f"SCALE: must be one of {', '.join(settings.SCALES)}, got {name!r}")
    if read_yaml(params).get("scale") == name:
        return False
    overlay = read_yaml(folder / f"{name}.yaml")
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 120
    yaml.representer.add_representer(type(None), _null)
    values = yaml.load(params.read_text(encoding="utf-8"))
    # By way of the default, so that nothing of the scale before stays.
    lay(read_yaml(folder / f"{DEFAULT}.yaml"), values)
    lay(overlay, values)
    values["scale"] = name
    settings.parse(plain(values))
    text = io.StringIO()
    yaml.dump(values, text)
    write_text(params, text.getvalue())
    return True


def _null(representer: Any, _value: None) -> Any:
    """`null` in so many letters; ruamel would leave the place empty."""
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


def lay(overlay: Mapping[str, Any], onto: MutableMapping[str, Any], path: str = "") -> None:
    """Writes the overlay's values into `onto`; a mapping goes into a mapping, all else replaces.

    Raises:
        ValueError: a key that `onto` does not have: an overlay changes settings, it adds none.
    """
    for key, value in overlay.items():
        name = join(path, str(key))
        if key not in onto:
            raise ValueError(f"{name}: is in the overlay but not in params.yaml")
        if isinstance(value, Mapping) and isinstance(onto[key], MutableMapping):
            lay(value, onto[key], name)
        elif isinstance(value, list) and isinstance(onto[key], list):
            onto[key][:] = value  # the list object keeps its style and its comment
        else:
            onto[key] = value


def leaves(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Every setting that is no mapping, by its full name."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = join(path, str(key))
        found.update(leaves(value, name) if isinstance(value, Mapping) else {name: value})
    return found


def plain(value: Any) -> Any:
    """Ordinary dictionaries, lists and numbers from what the comment-keeping loader gives."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def main(arguments: list[str] | None = None) -> int:
    """Applies a scale; exit status 1 and the reason where it cannot."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1:
        print(f"usage: python -m experiments.scale {{{','.join(settings.SCALES)}}}")
        return 2
    try:
        changed = apply(given[0])
    except ValueError as error:
        print(f"scale: {error}", file=sys.stderr)
        return 1
    print(f"scale: params.yaml {'is now' if changed else 'is already'} at {given[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
