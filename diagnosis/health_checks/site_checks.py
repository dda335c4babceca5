"""A site's own checks: which programs, how often, and what they are about, as a file of the site has it.

The file is the administrator's (it names programs that run with the agent's rights): ``[[check]]`` with ``name``,
``command`` (a list of words), ``period_s``, ``timeout_s``, and what it is about (``domain``, ``device_kind``).
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST_BYTES = 1 << 20
_MOST_CHECKS = 64
#: Where the file does not say.
PERIOD_S, TIMEOUT_S = 300.0, 30.0
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,24}")
_KEYS = frozenset({"name", "command", "period_s", "timeout_s", "domain", "device_kind"})
_DOMAINS = frozenset({"", "hardware", "network", "storage", "host", "service"})


class BadSiteChecks(ValueError):
    """One line: the file, what is wrong in it, and what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteCheck:
    """One program. command: its words, the first one an absolute path."""

    name: str
    command: tuple[str, ...]
    period_s: float = PERIOD_S
    timeout_s: float = TIMEOUT_S
    domain: str = ""
    device_kind: str = ""


def read_site_checks(path: str) -> list[SiteCheck]:
    """The checks in a file. Raises BadSiteChecks, also for a file that others than root and the caller may write."""
    try:
        with open(path, "rb") as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode) or state.st_uid not in (0, os.geteuid()) or state.st_mode & 0o022:
                raise BadSiteChecks(f"{path}: must be root's or your own, and nobody else may write it: chmod go-w")
            tables = tomllib.loads(file.read(_MOST_BYTES).decode())
    except OSError as error:
        raise BadSiteChecks(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadSiteChecks(f"{path}: {error}") from None
    entries = tables.get("check", [])
    if set(tables) - {"check"} or not isinstance(entries, list) or len(entries) > _MOST_CHECKS:
        raise BadSiteChecks(f"{path}: holds [[check]] tables, {_MOST_CHECKS} at most, and nothing else")
    checks = [_check(each, path) for each in entries]
    if len({each.name for each in checks}) < len(checks):
        raise BadSiteChecks(f"{path}: two checks have one name")
    return checks


def _check(entry: Mapping[str, Any], path: str) -> SiteCheck:
    name, command = entry.get("name"), entry.get("command")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadSiteChecks(f"{path}: name = {name!r}: small letters, digits, _ . -, 25 at most")
    if unknown := sorted(set(entry) - _KEYS):
        raise BadSiteChecks(f"{path}: {name}: {', '.join(unknown)}: no such key; there are {', '.join(sorted(_KEYS))}")
    words = [word for word in command if isinstance(word, str)] if isinstance(command, list) else []
    if not words or len(words) != len(command or ()) or not os.path.isabs(words[0]):
        raise BadSiteChecks(f"{path}: {name}: command must be a list of words, the first one a whole path")
    numbers = {key: entry.get(key, usual) for key, usual in (("period_s", PERIOD_S), ("timeout_s", TIMEOUT_S))}
    if any(not isinstance(value, int | float) or not 1 <= value <= 86_400 for value in numbers.values()):
        raise BadSiteChecks(f"{path}: {name}: period_s and timeout_s are 1 to 86400 seconds")
    domain = entry.get("domain", "")
    if domain not in _DOMAINS:
        raise BadSiteChecks(f"{path}: {name}: domain is one of {', '.join(sorted(_DOMAINS - {''}))}")
    return SiteCheck(
        name=name,
        command=tuple(words),
        domain=domain,
        device_kind=str(entry.get("device_kind", "")),
        period_s=float(numbers["period_s"]),
        timeout_s=float(numbers["timeout_s"]),
    )
