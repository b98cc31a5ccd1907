"""From plain YAML values to frozen dataclasses, with errors that name the field.

Used by `experiments.settings` (params.yaml) and `experiments.sources` (sources.yaml).
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML 1.2 file holds (the dialect that DVC reads, so 1e-2 is a number).

    Raises:
        ValueError: the file is missing, is not YAML, or holds something else than a mapping.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file; run from the repository's root")
    try:
        values = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except YAMLError as error:
        raise ValueError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: must hold a mapping of settings, got {type(values).__name__}")
    return values


def build(cls: type, values: Any, path: str = "", defaults: Any = None) -> Any:
    """An instance of the dataclass `cls` from a mapping, every value checked against its type.

    Args:
        cls: a dataclass; its `__post_init__` may raise ValueError starting with a field's name.
        values: the mapping, as YAML gives it.
        path: what stands before a field's name in errors, e.g. ``variants.k4``.
        defaults: an instance of `cls` whose values stand for keys that are absent.

    Raises:
        ValueError: a value is missing, unknown, of the wrong type or out of range. The message
            starts with the field's full name.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{path or cls.__name__}: must be a mapping, got {values!r}")
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    refuse_unknown(values, fields, path)
    hints = typing.get_type_hints(cls)
    ready: dict[str, Any] = {}
    for name, field in fields.items():
        if name in values:
            ready[name] = convert(values[name], hints[name], join(path, name))
        elif defaults is not None:
            ready[name] = getattr(defaults, name)
        elif not has_default(field):
            raise ValueError(f"{join(path, name)}: is missing")
    return construct(cls, ready, path)


def construct(cls: type, values: Mapping[str, Any], path: str) -> Any:
    """`cls(**values)`, with `path` put before the field's name in a ValueError."""
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(join(path, str(error))) from error


def join(path: str, name: str) -> str:
    """Full name of the field `name` under `path`."""
    return f"{path}.{name}" if path else name


def has_default(field: dataclasses.Field) -> bool:
    """Whether a dataclass field may be left out."""
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def refuse_unknown(values: Mapping[str, Any], known: typing.Iterable[str], path: str) -> None:
    """Raises ValueError for the first key of `values` that is not in `known`."""
    known = list(known)
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise ValueError(f"{join(path, str(key))}: unknown setting; {hint}")


def convert(value: Any, hint: Any, path: str) -> Any:
    """`value` as the type `hint`; ValueError with `path` where it is something else."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return convert(value, inner, path)
    if origin is typing.Literal:
        return one_of(value, arguments, path)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{path}: must be a list, got {value!r}")
        return tuple(convert(item, arguments[0], f"{path}[{i}]") for i, item in enumerate(value))
    if dataclasses.is_dataclass(hint):
        return build(hint, value, path)
    return scalar(value, hint, path)


def scalar(value: Any, hint: Any, path: str) -> Any:
    """A scalar of exactly the type asked for; a whole number passes as a float."""
    if hint is Any:
        return value
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ValueError(f"{path}: must be finite, got {value}")
        return float(value)
    if (hint is int and isinstance(value, bool)) or not isinstance(value, hint):
        names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        wanted = names.get(hint, getattr(hint, "__name__", str(hint)))
        raise ValueError(f"{path}: must be {wanted}, got {value!r}")
    return value


def one_of(value: Any, choices: typing.Sequence[Any], path: str) -> Any:
    """`value` if it is one of `choices`, else ValueError."""
    if value not in choices or (isinstance(value, bool) and True not in choices):
        raise ValueError(f"{path}: must be one of {', '.join(map(str, choices))}, got {value!r}")
    return value


def at_least(minimum: float, **fields: float) -> None:
    """Raises ValueError naming the first field that is below `minimum`."""
    for name, value in fields.items():
        if value < minimum:
            raise ValueError(f"{name}: must be >= {minimum}, got {value}")


def positive(**fields: float) -> None:
    """Raises ValueError naming the first field that is not above zero."""
    for name, value in fields.items():
        if not value > 0:
            raise ValueError(f"{name}: must be > 0, got {value}")
