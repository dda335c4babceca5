"""The file of --expect, as types: TOML tables in, ``Expected`` out, and back for a process of a probe. Pure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from .expected import (
    Expected,
    ExpectedCompute,
    ExpectedGpu,
    ExpectedHost,
    ExpectedKernelLog,
    ExpectedMemory,
    ExpectedNetwork,
    ExpectedServices,
    ExpectedStorage,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

_MOST_BYTES = 1 << 20


class BadExpectations(ValueError):
    """One line that names the file, the place and the remedy."""


_SECTIONS: Mapping[str, Callable[..., Any]] = {
    "gpu": ExpectedGpu,
    "network": ExpectedNetwork,
    "storage": ExpectedStorage,
    "memory": ExpectedMemory,
    "host": ExpectedHost,
    "services": ExpectedServices,
    "kernel_log": ExpectedKernelLog,
    "compute": ExpectedCompute,
}


def read_expectations(path: Path) -> Expected:
    """What the file of --expect asks for. Raises BadExpectations for one that cannot be read or has a wrong entry."""
    try:
        with open(path, "rb") as file:
            raw = file.read(_MOST_BYTES)
        tables = tomllib.loads(raw.decode("utf-8"))
    except OSError as error:
        raise BadExpectations(f"{path}: {error.strerror}; name a TOML file that can be read") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadExpectations(f"{path}: {error}; see docs/check.md for its keys") from None
    return expected_of(tables, str(path))


def plain_expected(expected: Expected) -> dict[str, Any]:
    """The expectations as tables, of which ``expected_of`` makes the same again."""
    tables: dict[str, Any] = {"versions": dict(expected.versions)}
    for section, made in _SECTIONS.items():
        given = getattr(expected, section)
        values = {each.name: getattr(given, each.name) for each in fields(made)}  # type: ignore[arg-type]
        tables[section] = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in values.items()
            if value is not None
        }
    return tables


def expected_of(tables: Mapping[str, Any], source: str) -> Expected:
    """The expectations in these tables. source: what errors call the tables.

    Raises BadExpectations for a section, a key or a value that there is not.
    """
    given: dict[str, Any] = {}
    for section, table in tables.items():
        if not isinstance(table, dict) or section not in (*_SECTIONS, "versions"):
            known = ", ".join((*_SECTIONS, "versions"))
            raise BadExpectations(f"{source}: [{section}] is no section; there are {known}")
        if section == "versions":
            given[section] = {what: _value("str", value, f"{source}: versions.{what}") for what, value in table.items()}
        else:
            given[section] = _section(_SECTIONS[section], table, f"{source}: {section}")
    return Expected(**given)


def _section(made: Callable[..., Any], table: Mapping[str, Any], where: str) -> Any:
    kinds = {each.name: str(each.type) for each in fields(made)}  # type: ignore[arg-type]
    values = {}
    for key, value in table.items():
        if key not in kinds:
            raise BadExpectations(f"{where}.{key}: no such key; there are {', '.join(kinds)}")
        values[key] = _value(kinds[key], value, f"{where}.{key}")
    return made(**values)


def _value(kind: str, value: Any, where: str) -> Any:
    """``kind``: the annotation of the field."""
    if kind == "str" and isinstance(value, str):
        return value
    if kind.startswith("tuple") and isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    numbers = int if kind.startswith("int") else (int, float)
    if kind[0] in "if" and isinstance(value, numbers) and not isinstance(value, bool) and 0 <= value < 1e15:
        return value
    wanted = {"s": "a text", "t": "a list of texts", "i": "a whole number, 0 or more", "f": "a number, 0 or more"}
    raise BadExpectations(f"{where} = {value!r}: must be {wanted[kind[0]]}")
