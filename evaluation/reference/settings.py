"""Sections of the reference about what can be set: keys, variables, flags, and every command. Pure."""

from __future__ import annotations

import inspect
import json
import re
import socket
import types
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ByteSize, SecretStr
from pydantic.fields import FieldInfo
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from ...commands.main import app
from ...commands.settings.notify_options import ReceiverOptions, RouteOptions
from ...commands.settings.settings import (
    AgentOptions,
    AnnotateOptions,
    CheckOptions,
    KafkaOptions,
    NodeSettings,
    NotifyOptions,
    ProcessOptions,
    RespondOptions,
    RunSettings,
    TopicsOptions,
)
from ...commands.settings.settings_sources import ENVIRONMENT_PREFIX, Settings
from ...telemetry.vocabulary import Bucket, Kind, Scope
from . import words
from .markdown import code, section, table

#: Whose keys stand together: heading, class, the class whose keys stand elsewhere, the command that has the flags.
GROUPS: tuple[tuple[str, type[Settings], type[Settings], str], ...] = (
    ("How to reach Kafka: every command that speaks to it", KafkaOptions, Settings, "agent"),
    ("What is collected of a node: run and agent", NodeSettings, KafkaOptions, "agent"),
    ("whichrank run", RunSettings, NodeSettings, "run"),
    ("whichrank agent", AgentOptions, NodeSettings, "agent"),
    ("whichrank process", ProcessOptions, KafkaOptions, "process"),
    ("whichrank respond", RespondOptions, KafkaOptions, "respond"),
    ("whichrank notify", NotifyOptions, KafkaOptions, "notify"),
    ("whichrank grafana annotate", AnnotateOptions, KafkaOptions, "grafana annotate"),
    ("whichrank check", CheckOptions, KafkaOptions, "check"),
    ("whichrank topics, dlq, evidence, incidents, plan, goodput, report", TopicsOptions, KafkaOptions, "topics"),
)
TABLES: Mapping[str, type[BaseModel]] = {
    "[notify_receivers.NAME]": ReceiverOptions,
    "[[notify_routes]]": RouteOptions,
}
#: What stands before a key and not before its flag.
_PREFIXES = ("", "respond_", "notify_", "annotate_", "grafana_", "kafka_")
#: A flag whose parameter is called otherwise than the end of its key.
_PARAMETERS = {"run": "from"}
_HEADS = ("Key", "Variable", "Flag", "Type", "Default", "What")
_BOUNDS: Mapping[str, str] = {"ge": "≥", "gt": ">", "le": "≤"}
#: Sets with many words have a table of their own.
_SETS: Mapping[type[Enum], str] = {Bucket: "#buckets", Kind: "#kinds-of-incidents", Scope: "#scopes"}
_PLACE_OF_STATE = "/var/lib/whichrank"


def settings() -> str:
    """The section of all keys, group by group, with their variables and flags."""
    parts = [f"### {heading}\n\n{table(_HEADS, _rows(kind, base, command))}" for heading, kind, base, command in GROUPS]
    tables = [
        f"### Table `{heading}`\n\n{table(('Key', 'Type', 'Default', 'What'), _fields(model))}"
        for heading, model in TABLES.items()
    ]
    variables = [(code(name), text) for name, text in words.VARIABLES.items()]
    return "\n\n".join(
        (
            section(
                "Settings",
                "A key of `whichrank.toml`, the same as a variable, and often a flag; a key without a flag is "
                "given as `--set KEY=VALUE`. A flag beats the variable, the variable beats the file. One file serves "
                "every command; `--print-config` shows what holds. Sizes are written as 500MB or 2GiB. State of others "
                "than root lies below `~/.local/state/whichrank`.",
                *parts,
                *tables,
            ),
            section(
                "Other variables",
                "Read by ranks, or said by whoever starts them.",
                table(("Variable", "What"), variables),
            ),
        )
    )


def keys_of(kind: type[Settings], base: type[Settings]) -> Iterator[tuple[str, FieldInfo]]:
    """Keys that the class has and its base has not."""
    for key, field in kind.model_fields.items():
        if key not in base.model_fields:
            yield key, field


def _rows(kind: type[Settings], base: type[Settings], command: str) -> Iterator[tuple[str, ...]]:
    flags = flags_of(command, kind)
    for key, field in keys_of(kind, base):
        yield (
            code(key),
            code(f"{ENVIRONMENT_PREFIX}{key.upper()}"),
            flags.get(key, ""),
            _type_words(field),
            _default_words(field),
            field.description or "",
        )


def flags_of(command: str, kind: type[Settings]) -> Mapping[str, str]:
    """By key, the flag of the command that sets it."""
    found: dict[str, str] = {}
    for parameter in program()[command].params:
        name = _PARAMETERS.get(parameter.name, parameter.name)
        key = next((prefix + name for prefix in _PREFIXES if prefix + name in kind.model_fields), None)
        if key is not None and parameter.param_type_name == "option" and not getattr(parameter, "hidden", False):
            found[key] = _flags(parameter)
    return found


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    for key, field in model.model_fields.items():
        yield code(key), _type_words(field), _default_words(field), field.description or ""


def _type_words(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {bound}"
        for limit in field.metadata
        for name, sign in _BOUNDS.items()
        if (bound := getattr(limit, name, None)) is not None
    ]
    return ", ".join([_type_word(field.annotation), *bounds])


def _type_word(kind: Any) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_type_word(each) for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is Literal:
        return ", ".join(code(str(each)) for each in get_args(kind))
    if get_origin(kind) is list:
        return f"list of {_type_word(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return f"table of {_type_word(get_args(kind)[1])}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        if kind in _SETS:
            return f"[{kind.__name__.lower()}]({_SETS[kind]})"
        return ", ".join(code(str(each.value)) for each in kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "table"
    known = {bool: "true or false", int: "number", float: "number", str: "text", Path: "path"}
    return {**known, ByteSize: "size", SecretStr: "secret"}.get(kind, str(kind))


def _default_words(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "the host's name" if field.default_factory is socket.gethostname else _place(field.default_factory)
    if field.is_required():
        return "must be given"
    value = field.default
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None or value == "" or value == [] or value == {}:
        return "none"
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, ByteSize):
        return code(_size(value))
    return code(json.dumps(value) if isinstance(value, list) else str(value))


def _size(count: int) -> str:
    unit, word = next(
        ((unit, word) for unit, word in ((1 << 30, "GiB"), (1 << 20, "MiB")) if count % unit == 0), (1, "")
    )
    return f"{count // unit}{word}"


def _place(factory: Any) -> str:
    """Where a service that root runs keeps its state; the factory knows only where this user would."""
    return code(f"{_PLACE_OF_STATE}/{Path(factory()).name}")


@cache
def program() -> Mapping[str, TyperCommand | TyperGroup]:
    """Every command of whichrank by its words, groups that do something by themselves included."""
    found: dict[str, TyperCommand | TyperGroup] = {}

    def walk(command: Any, words_so_far: tuple[str, ...]) -> None:
        below = getattr(command, "commands", {})
        if words_so_far and (not below or command.invoke_without_command):
            found[" ".join(words_so_far)] = command
        for name, each in below.items():
            walk(each, (*words_so_far, name))

    walk(get_command(app), ())
    return found


def commands() -> str:
    """The section of all commands with their flags, arguments and exit statuses."""
    parts = [f"### whichrank {name}\n\n{_command(command)}" for name, command in sorted(program().items())]
    return section("Commands", "Flags that are not given leave the setting of the same name as it is.", *parts)


def _command(command: Any) -> str:
    text = inspect.cleandoc(command.help or "")
    first, *_ = text.split("\n\n")
    parts = [" ".join(first.split())]
    rows = [
        (_flags(each), _value(each), " ".join((each.help or "").split()))
        for each in command.params
        if each.name != "help" and not getattr(each, "hidden", False)  # it only says what to use in its place
    ]
    if rows:
        parts.append(table(("Flag or argument", "Value", "What"), rows))
    if status := exit_status(text):
        parts.append(f"Exit status: {status}")
    return "\n\n".join(parts)


def exit_status(text: str) -> str:
    """What a command's help text says of its exit status.

    Empty where it says nothing: then it is 0, and 2 for what cannot be done.
    """
    match = re.search(r"Exit status:\s+((?:.|\n)*?)(?:\n\n|\Z)", text)
    return " ".join(match[1].split()) if match else ""


def _value(parameter: Any) -> str:
    """What is written behind a flag, where its type alone does not say it."""
    return parameter.metavar or "" if parameter.param_type_name == "option" else ""


def _flags(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return code(str(parameter.metavar or parameter.name.upper()))
    return ", ".join(code(flag) for flag in (*parameter.opts, *parameter.secondary_opts))
