"""Inheritance, sweeps and overlays: from the mappings of params.yaml to plain cells, in memory."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

SHOWN = 12  # names that a person reads through

OWN = ("base", "sweep")  # what a block has beside the fields of an experiment


def laid(overlay: Mapping[str, Any], onto: Mapping[str, Any], path: str = "",
         new: bool = True) -> dict[str, Any]:  # fmt: skip
    """``onto`` with the overlay's values; a mapping goes into a mapping, all else replaces, and
    null removes a mapping.

    Args:
        new: whether the overlay may bring blocks, and names in them, that ``onto`` does not have.

    Raises:
        ValueError: it brings one, and may not.
    """
    out = dict(onto)
    for key, value in overlay.items():
        place = f"{path}.{key}" if path else str(key)
        if key not in onto and not new:
            raise ValueError(f"{place}: is in the overlay but not in params.yaml")
        inner = onto.get(key)
        if isinstance(value, Mapping) and isinstance(inner, Mapping):
            # Another method or regime has other fields: what the first one's were means nothing.
            renamed = "name" in value and "name" in inner and value["name"] != inner["name"]
            # Below a name stand fields, which the block itself knows.
            out[key] = dict(value) if renamed else laid(value, inner, place, new or bool(path))
        elif value is None and isinstance(inner, Mapping):
            del out[key]
        else:
            out[key] = value
    return out


def near(name: Any, known: Iterable[str]) -> str:
    """What there is instead of an unknown name: all, or of many the nearest."""
    every = list(known)
    if len(every) <= SHOWN:
        return f"there are {', '.join(every)}"
    close = difflib.get_close_matches(str(name), every, 3, 0.4)
    return f"the nearest are {', '.join(close)}" if close else f"there are {len(every)} others"


def inherited(name: str, blocks: Mapping[str, Any], path: str,
              seen: tuple[str, ...] = ()) -> dict[str, Any]:  # fmt: skip
    """A block over its base's, all the way up.

    Raises:
        ValueError: a base that there is not, or a circle of bases.
    """
    own = blocks[name]
    if not isinstance(own, Mapping):
        raise ValueError(f"{path}: must be a mapping, got {own!r}")
    base = own.get("base")
    if base is None:
        return dict(own)
    if not isinstance(base, str):
        raise ValueError(f"{path}.base: must be the name of one block, got {base!r}")
    if base not in blocks:
        raise ValueError(f"{path}.base: {base!r} is no block; {near(base, blocks)}")
    if base in (*seen, name):
        raise ValueError(f"{path}.base: {base!r} inherits from {name!r} itself")
    above = inherited(base, blocks, path, (*seen, name))
    # A base's sweep and place in the core are its own.
    kept = {key: value for key, value in above.items() if key not in ("sweep", "core")}
    return laid(own, kept)


def swept(name: str, block: Mapping[str, Any], path: str) -> dict[str, dict[str, Any]]:
    """Cells by name: one for every point of the block's sweep, or the block itself.

    Raises:
        ValueError: a sweep that is no mapping of fields to lists of plain values, or names a field
            twice.
    """
    plain = {key: value for key, value in block.items() if key not in OWN}
    sweep = block.get("sweep")
    if not sweep:
        return {name: plain}
    if not isinstance(sweep, Mapping) or not all(isinstance(v, list) and v for v in sweep.values()):
        raise ValueError(f"{path}.sweep: must map fields to lists of values, got {sweep!r}")
    places = [whole(field, plain) for field in sweep]
    for (field, values), place in zip(sweep.items(), places, strict=True):
        if places.count(place) > 1:
            raise ValueError(f"{path}.sweep: {field} is there twice, with and without its path")
        if any(isinstance(each, list | Mapping) for each in values):
            raise ValueError(f"{path}.sweep.{field}: a cell is named by its value, so only plain "
                             "values can be swept; write a block for each")  # fmt: skip
    cells = {}
    for point in itertools.product(*sweep.values()):
        label, cell = name, plain
        for place, value in zip(places, point, strict=True):
            parts = place.split(".")
            label += f"-{parts[-1]}{value}"
            cell = laid(_nested(parts, value), cell)
        if label in cells:
            raise ValueError(f"{path}.sweep: two cells would be named {label}")
        cells[label] = cell
    return cells


def whole(field: str, plain: Mapping[str, Any]) -> str:
    """The path of a swept field: `window` alone means the method's, which ablations are of, unless
    it is a field that the block's regime is given and its method is not, such as `steps`."""
    if "." in field or field in plain:
        return field
    method, regime = (isinstance(own := plain.get(part), Mapping) and field in own
                      for part in ("method", "regime"))  # fmt: skip
    return f"regime.{field}" if regime and not method else f"method.{field}"


def started(name: str, points: Mapping[str, dict[str, dict[str, Any]]]) -> None:
    """Lets every cell of a swept block that starts from another swept block start from the cell of
    the same point, where there is one.

    Args:
        points: cells by name, by block.
    """
    for label, cell in points[name].items():
        same = f"{cell.get('start')}{label.removeprefix(name)}"
        if same in points.get(str(cell.get("start")), {}):
            cell["start"] = same


def _nested(parts: list[str], value: Any) -> dict[str, Any]:
    return {parts[0]: _nested(parts[1:], value) if len(parts) > 1 else value}
