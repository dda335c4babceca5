"""Settings of ``whichrank run``: file < environment < flags, checked once.

An unknown key is an error that names the file and line and what was probably meant.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import ByteSize, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from .launcher import split_address

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

ENVIRONMENT_PREFIX = "WHICHRANK_"
#: Names the settings file itself.
CONFIG_VARIABLE = "WHICHRANK_CONFIG"
DEFAULT_FILE = Path("whichrank.toml")


#: Below this a capture would hold a few messages only.
MIN_CAPTURE_BYTES = 64 << 10


class Level(str, Enum):
    off = "off"
    status = "status"
    events = "events"


class View(str, Enum):
    auto = "auto"
    live = "live"
    lines = "lines"
    none = "none"


class SettingsError(Exception):
    """The settings cannot be used; one line per problem, each with its place and a remedy."""


class RunSettings(BaseSettings):
    """Everything that can be set for ``whichrank run``."""

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, extra="forbid", frozen=True)

    out: Path | None = Field(None, description="folder for incidents, capture and state")
    json_lines: bool = Field(False, description="incidents as JSON lines on stderr")
    view: View = Field(View.auto, description="live, lines or none; auto: live on a terminal")
    level: Level = Field(Level.events, description="what the ranks record at the start")
    native: bool = Field(True, description="use the compiled recorder where it was built")
    completion: bool = Field(True, description="record also when operations complete")
    ring_root: Path | None = Field(None, description="parent folder of the rings, on a tmpfs")
    keep_rings: bool = Field(False, description="leave the rings where they are after a normal end")
    capture_limit: ByteSize = Field(
        ByteSize(2 << 30), description="size of the capture (1GiB, 500MB, bytes), the oldest goes first; 0: no limit"
    )
    judge: str = Field("", description="HOST or HOST:PORT whose whichrank judges; default: from the rendezvous")
    judge_secret: SecretStr = Field(
        SecretStr(""), description="what the instances of one job share; better by variable"
    )
    job_name: str = Field("", description="what people call the job; default: the scheduler's word, or the script")

    @field_validator("capture_limit")
    @classmethod
    def _check_capture_limit(cls, value: ByteSize) -> ByteSize:
        if 0 < value < MIN_CAPTURE_BYTES:
            raise ValueError(f"at least {MIN_CAPTURE_BYTES >> 10} KiB, or 0 for no limit")
        return value

    @field_validator("judge")
    @classmethod
    def _check_judge(cls, value: str) -> str:
        if value:
            split_address(value, 0)
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        assert isinstance(init_settings, InitSettingsSource)
        arguments = dict(init_settings.init_kwargs)
        from_file = arguments.pop("_from_file", {})
        flags = InitSettingsSource(settings_cls, init_kwargs=arguments)
        return (flags, env_settings, InitSettingsSource(settings_cls, init_kwargs=from_file))


def load_settings(flags: Mapping[str, Any], config: Path | None = None) -> tuple[RunSettings, dict[str, str]]:
    """Merge all sources. ``flags`` holds only what was given on the command line.

    Returns the settings and, by key, where each value came from. Raises SettingsError.
    """
    path = config or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    if path is None and DEFAULT_FILE.is_file():
        path = DEFAULT_FILE
    text, values = _read_file(path) if path is not None else ("", {})
    problems = [_unknown(f"{path}:{_line_of(text, key)}", key) for key in values if key not in RunSettings.model_fields]
    if problems:
        raise SettingsError("\n".join(problems))
    origins = {
        key: "flag"
        if key in flags
        else f"environment {ENVIRONMENT_PREFIX}{key.upper()}"
        if f"{ENVIRONMENT_PREFIX}{key.upper()}" in os.environ
        else f"{path}:{_line_of(text, key)}"
        if key in values
        else "default"
        for key in RunSettings.model_fields
    }
    try:
        return RunSettings(_from_file=values, **flags), origins  # type: ignore[call-arg]
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            key = str(problem["loc"][0]) if problem["loc"] else "?"
            lines.append(f"{origins.get(key, '?')}: {key} = {problem['input']!r}: {problem['msg']}")
        raise SettingsError("\n".join(lines)) from None


def print_settings(settings: RunSettings, origins: Mapping[str, str]) -> str:
    """The settings as a TOML file that gives the same again, with the origin of each value."""
    lines = []
    for key, value in settings.model_dump(mode="json").items():
        line = f"# {key} is not set" if value is None else f"{key} = {json.dumps(value)}"
        lines.append(f"{line:<40}  # {origins[key]}; {RunSettings.model_fields[key].description}")
    return "\n".join(lines)


def _read_file(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text()
        return text, tomllib.loads(text)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not TOML: {error}") from error


def _unknown(place: str, key: str) -> str:
    near = difflib.get_close_matches(key, RunSettings.model_fields, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(RunSettings.model_fields)}"
    return f"{place}: unknown key {key!r}; {remedy}"


def _line_of(text: str, key: str) -> int:
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match(rf"""\s*\[?["']?{re.escape(key)}\b""", line):
            return number
    return 0
