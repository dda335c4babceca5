"""What docker-compose.yml and its overlays say of a service, for those who start the same without Docker.

Only what these files use: anchors, ``${NAME:-default}``, and Compose's rules for merging overlays (mappings merge,
mounts merge by their target, commands replace, other lists append). ``test_compose_files`` compares it with Compose.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.stack.parts.placing import REPOSITORY

BASE = "docker-compose.yml"
TLS = "compose.tls.yaml"
#: Without users.
OPEN = "compose.open.yaml"
NVIDIA = "compose.nvidia.yaml"
#: The processors on Flink.
FLINK = "compose.flink.yaml"
#: What people must set before anything starts.
REQUIRED = {"GRAFANA_ADMIN_PASSWORD": "not-used"}
_VARIABLE = re.compile(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}")
_REPLACED_LISTS = ("command", "entrypoint", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One service as Compose would see it. ``binds``: path in the container -> file or folder here.

    ``secrets``: name -> file here; the container has it as ``/run/secrets/NAME``.
    """

    name: str
    image: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    binds: Mapping[str, Path]
    volumes: Mapping[str, str]
    secrets: Mapping[str, Path]
    raw: Mapping[str, Any]


def services(overlays: Sequence[str] = (), values: Mapping[str, str] = REQUIRED) -> dict[str, Definition]:
    """All services of all profiles, with ``overlays`` on top and ``values`` as the variables that are set."""
    merged = load(BASE, values)
    for overlay in overlays:
        merged = merge(merged, load(overlay, values))
    secrets = {name: _here(raw["file"]) for name, raw in merged["secrets"].items()}
    return {name: _definition(name, raw, secrets) for name, raw in merged["services"].items()}


def service(name: str, overlays: Sequence[str] = (), values: Mapping[str, str] = REQUIRED) -> Definition:
    return services(overlays, values)[name]


def load(file: str, values: Mapping[str, str]) -> dict[str, Any]:
    content = yaml.safe_load((REPOSITORY / file).read_text())
    interpolated = _interpolate({key: value for key, value in content.items() if not key.startswith("x-")}, values)
    assert isinstance(interpolated, dict)
    return interpolated


def merge(below: Any, above: Any, key: str = "") -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return {
            name: merge(below[name], above[name], name) if name in below and name in above else {**below, **above}[name]
            for name in {**below, **above}
        }
    if isinstance(below, list) and isinstance(above, list) and key not in _REPLACED_LISTS:
        if key == "volumes":
            return list({mount["target"]: mount for mount in [*below, *above]}.values())
        return [*below, *above]
    return above


def _interpolate(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _interpolate(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [_interpolate(item, values) for item in value]
    return _VARIABLE.sub(lambda match: _variable(match, values), value) if isinstance(value, str) else value


def _variable(match: re.Match[str], values: Mapping[str, str]) -> str:
    name, how, rest = match.groups()
    if values.get(name):
        return values[name]
    if how == ":?":
        raise KeyError(rest)
    assert how == ":-", f"{match[0]} has no default"
    return str(rest)


def _definition(name: str, raw: Mapping[str, Any], secrets: Mapping[str, Path]) -> Definition:
    mounts = raw.get("volumes", [])
    return Definition(
        name=name,
        image=raw["image"],
        entrypoint=tuple(map(str, raw.get("entrypoint", ()))),
        command=tuple(map(str, raw.get("command", ()))),
        environment={key: str(value) for key, value in raw.get("environment", {}).items()},
        binds={mount["target"]: _here(mount["source"]) for mount in mounts if mount["type"] == "bind"},
        volumes={mount["target"]: mount["source"] for mount in mounts if mount["type"] == "volume"},
        secrets={name: secrets[name] for name in raw.get("secrets", ())},
        raw=raw,
    )


def _here(path: str) -> Path:
    return Path(os.path.normpath(REPOSITORY / path))
