"""How settings are found: file < environment < flags, checked once.

An unknown key is an error that names the file and line and what was probably meant. One file serves every command: a
key that another command knows is passed over.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from .file_trust import what_is_wrong, what_is_wrong_here, who_else_decides, who_reads_secrets
from .given_file import read_given_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

ENVIRONMENT_PREFIX = "WHICHRANK_"
#: Names the settings file itself.
CONFIG_VARIABLE = "WHICHRANK_CONFIG"
DEFAULT_FILE = Path("whichrank.toml")
#: Of services, and of commands that people give beside them.
SYSTEM_FILE = Path("/etc/whichrank/whichrank.toml")


class SettingsError(Exception):
    """The settings cannot be used; one line per problem, each with its place and a remedy."""


class Settings(BaseSettings):
    """What the settings of every command have in common."""

    #: Whether the file in the current folder counts: for what people start in their own folder, and for nothing else.
    reads_current_folder: ClassVar[bool] = False
    #: Whether these settings hold commands, which nobody but root and the caller may have written.
    holds_commands: ClassVar[bool] = False
    # A command needs one of these classes: what checks the values of the others is not built.
    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources of values in their order: flags beat variables, variables beat the file. Called by pydantic."""
        assert isinstance(init_settings, InitSettingsSource)
        arguments = dict(init_settings.init_kwargs)
        from_file = arguments.pop("_from_file", {})
        flags = InitSettingsSource(settings_cls, init_kwargs=arguments)
        return (flags, env_settings, InitSettingsSource(settings_cls, init_kwargs=from_file))


S = TypeVar("S", bound=Settings)
#: What the command line gives, by the setting of that name.
Flags = Mapping[str, str | int | float | bool | Path | None]


def on_command_line(key: str) -> str:
    """Why a secret is not taken from a flag, in one line with the remedy."""
    return (
        f"{key}: everybody can read it on the command line (ps): give it as {ENVIRONMENT_PREFIX}{key.upper()}, "
        f"or in a file of its own with {key}_file"
    )


def settings_path(config: Path | None, *, reads_current_folder: bool = False) -> Path | None:
    """The settings file that holds; None: none.

    The one named, else by the environment, else the system's, or where a command reads it that of the current folder.
    Raises SettingsError for one that nobody has named and that others may write.
    """
    path = config or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    wrong = None
    if path is None and os.path.lexists(unnamed := DEFAULT_FILE if reads_current_folder else SYSTEM_FILE):
        path, wrong = unnamed, what_is_wrong_here(unnamed)
    if wrong is not None:
        raise SettingsError(wrong)
    return path


def read_settings(
    kind: type[S],
    known: Collection[str],
    flags: Flags,
    config: Path | None,
    pairs: Sequence[str] = (),
    *,
    secrets: Collection[str] = (),
) -> tuple[S, dict[str, str]]:
    """Merge all sources into settings of a kind. ``flags`` holds only what was given on the command line.

    known: the keys of all commands, which the file may hold. pairs: further flags as KEY=VALUE. secrets: those keys
    that nobody else may read.
    Returns the settings and, by key, where each value came from. Raises SettingsError.
    """
    given = _split_pairs(pairs, kind.model_fields)
    for key in secrets:
        if given.get(key):
            raise SettingsError(on_command_line(key))
    flags = {**given, **flags}
    path = settings_path(config, reads_current_folder=kind.reads_current_folder)
    text, state = _read_file(path) if path is not None else ("", None)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not TOML: {error}") from error
    except RecursionError as error:
        raise SettingsError(f"{path}: not settings: lists or tables within each other without end") from error
    problems = [_unknown(f"{path}:{_line_of(text, key)}", key, known) for key in values if key not in known]
    if problems:
        raise SettingsError("\n".join(problems))
    if path is not None and state is not None:
        _check_trust(path, state, kind, values, secrets)
    values = {key: value for key, value in values.items() if key in kind.model_fields}
    origins = {
        key: "flag"
        if key in flags
        else f"environment {ENVIRONMENT_PREFIX}{key.upper()}"
        if f"{ENVIRONMENT_PREFIX}{key.upper()}" in os.environ
        else f"{path}:{_line_of(text, key)}"
        if key in values
        else "default"
        for key in kind.model_fields
    }
    try:
        return kind(**{"_from_file": values, **flags}), origins
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            path_in = ".".join(map(str, problem["loc"]))
            key = str(problem["loc"][0]) if problem["loc"] else ""
            # Of a table only the place is told: its other values are nobody's business in a log.
            shown = f" = {problem['input']!r}" if path_in == key and not isinstance(problem["input"], dict) else ""
            place = f"{origins.get(key, '?')}: {path_in}{shown}: " if key else ""
            lines.append(f"{place}{problem['msg'].removeprefix('Value error, ')}")
        raise SettingsError("\n".join(lines)) from None


def print_settings(settings: Settings, origins: Mapping[str, str]) -> str:
    """The settings as a TOML file that gives the same again, with the origin of each value."""
    lines = []
    for key, value in settings.model_dump(mode="json").items():
        line = f"# {key} is not set" if value is None else f"{key} = {_toml_value(value)}"
        lines.append(f"{line:<40}  # {origins[key]}; {type(settings).model_fields[key].description}")
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    """On one line. What is null inside of a table is left out: TOML has no null."""
    if isinstance(value, dict):
        fields = (f"{json.dumps(name)} = {_toml_value(each)}" for name, each in value.items() if each is not None)
        return "{" + ", ".join(fields) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return json.dumps(value)


def _split_pairs(pairs: Sequence[str], known: Collection[str]) -> dict[str, str]:
    """Raises SettingsError for what is no KEY=VALUE of this command."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise SettingsError(f"--set {pair}: write --set KEY=VALUE")
        if key not in known:
            raise SettingsError(_unknown(f"--set {pair}", key, known))
        values[key] = value
    return values


def _check_trust(
    path: Path, state: os.stat_result, kind: type[Settings], values: Mapping[str, object], secrets: Collection[str]
) -> None:
    """Raises SettingsError for what may not stand in this file. values: what does."""
    wrong = what_is_wrong(path, state) or who_reads_secrets(path, [key for key in secrets if values.get(key)], state)
    if wrong is None and kind.holds_commands and any(key in kind.model_fields for key in values):
        try:
            wrong = who_else_decides(path, state)
        except OSError as error:
            wrong = f"{path}: cannot be read: {error.strerror}"
    if wrong is not None:
        raise SettingsError(wrong)


def _read_file(path: Path) -> tuple[str, os.stat_result]:
    """Raises SettingsError."""
    try:
        content, state = read_given_file(path)
        return content.decode("utf-8"), state
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}; name a file in TOML") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not TOML: {error}") from error


def _unknown(place: str, key: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return f"{place}: unknown key {key!r}; {remedy}"


def _line_of(text: str, key: str) -> int:
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match(rf"""\s*\[{{0,2}}["']?{re.escape(key)}\b""", line):
            return number
    return 0
