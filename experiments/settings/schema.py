"""What every block of params.yaml is built from, and errors that name the field."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

Item = TypeVar("Item", bound=Hashable)
Block = TypeVar("Block", bound="Frozen")

Dtype = Literal["float32", "bfloat16", "float16"]
ModelDtype = Literal["auto", "float32", "bfloat16", "float16"]
Count = Annotated[int, Field(ge=1)]
Size = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Limit = Annotated[float, Field(ge=0)]


class Frozen(BaseModel):
    """An immutable block: unknown fields are refused, a text is no number.

    Attributes:
        LATER: fields that came after there were results. Where they have their default they stand
            in no record, so that what was made without them still counts as made so.
        FORMER: fields that are no more, with the one value that results have of them: every record
            still has it, so that what was made with them still counts.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
    LATER: ClassVar[tuple[str, ...]] = ()
    FORMER: ClassVar[tuple[tuple[str, Any], ...]] = ()

    def plain(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return self.model_dump(mode="json")

    @model_serializer(mode="wrap")
    def _as_recorded(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        usual = {name: type(self).model_fields[name].default for name in self.LATER}
        own = {name: value for name, value in dump(self).items()
               if name not in usual or _as_list(value) != _as_list(usual[name])}  # fmt: skip
        return own | dict(self.FORMER)


def _as_list(value: Any) -> Any:
    """What is a tuple here is a list in JSON."""
    return list(value) if isinstance(value, tuple) else value


def once(values: Sequence[Item]) -> Sequence[Item]:
    """The values; ValueError where one of them comes twice."""
    if len(set(values)) != len(values):
        raise ValueError("must name no value twice")
    return values


def _distinct(values: Sequence[Item]) -> Sequence[Item]:
    if not values:
        raise ValueError("must name at least one value")
    return once(values)


# params.yaml has lists; what stages hold must not change.
Distinct = Annotated[tuple[Item, ...], Field(strict=False), AfterValidator(_distinct)]
Listed = Annotated[tuple[Item, ...], Field(strict=False)]


def parse(kind: type[Block], values: Any, path: str) -> Block:
    """A block from plain values.

    Raises:
        ValueError: the message starts with the field's full name.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{path}: must be a mapping, got {values!r}")
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        lines = [_line(each, path, values) for each in error.errors()]
        raise ValueError("\n".join(line.removeprefix(".") for line in lines)) from error


def _line(found: Mapping[str, Any], path: str, values: Any) -> str:
    """One of pydantic's findings, by the names that params.yaml has."""
    kind, what = found["type"], found["msg"].removeprefix("Value error, ")
    what = what.replace("valid tuple", "list")  # which YAML has
    place = path + _place(found["loc"], values, kind)
    if kind.startswith("union_tag"):  # a name that decides which fields there are
        told = found["ctx"]
        name = told["discriminator"].strip("'")
        if "tag" not in told:
            return f"{place}.{name}: Field required"
        return f"{place}.{name}: must be one of {told['expected_tags']}, got {told['tag']!r}"
    if re.match(r"[a-z_.]+: ", what):  # a check of several fields names the one it means
        return f"{place}.{what}"
    if kind == "extra_forbidden":
        return f"{place}: unknown field"
    got = "" if kind == "missing" else f", got {found['input']!r}"
    return f"{place}: {what}{got if len(got) < 200 else ''}"


def _place(parts: Sequence[str | int], values: Any, kind: str) -> str:
    """A finding's place within the values; names of the kinds that a union has, which pydantic puts
    between the fields, are left out."""
    place, inner = "", values
    for number, part in enumerate(parts):
        absent = number == len(parts) - 1 and kind == "missing"
        if isinstance(part, int) and isinstance(inner, Sequence):
            place, inner = f"{place}[{part}]", inner[part]
        elif isinstance(inner, Mapping) and (part in inner or absent):
            place, inner = f"{place}.{part}", inner.get(part)
    return place


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping; ValueError names the file where it does not.

    As DVC reads it (YAML 1.2: 1e-2 is a number, `on` a text; no name twice).
    """
    try:
        found = copy.deepcopy(_parsed(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        what = (getattr(error, "problem", None) or str(error)).splitlines()[0]
        raise ValueError(f"{path}: {where}no valid YAML ({what})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: must hold a mapping")
    return found


@functools.lru_cache(maxsize=8)
def _parsed(text: str) -> Any:
    # The settings take half a second, and a process may ask for them again and again.
    return YAML(typ="safe", pure=True).load(text)


def plain_name(name: Any) -> str:
    """A name that can be one of a folder, of a stage, and of an argument."""
    if not isinstance(name, str) or not re.fullmatch(r"[^\W_][\w.-]*", name):
        raise ValueError("a name is letters, digits, -, _ and ., and begins with none of the last "
                         "three; one that is a number stands in quotes")  # fmt: skip
    return name


Name = Annotated[str, AfterValidator(plain_name)]
