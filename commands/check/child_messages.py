"""What a probe's process is told, and what it tells: JSON, one message a line. Parsing and writing, nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ...diagnosis.health_checks.outcome import CheckStatus
from .check_setup import CheckMode, Setup
from .expectations_file import expected_of, plain_expected
from .finding import CheckFinding, Family

#: More is cut: a driver's words can be anything.
_MOST_CHARACTERS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Begins:
    """What is asked now, and what it means if the answer never comes."""

    what: str
    stuck: CheckStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """All that there was to tell has been told."""


ChildMessage = CheckFinding | Begins | Done


def write_setup(setup: Setup) -> bytes:
    """The setup as JSON for a probe's stdin, as ``read_setup`` reads it."""
    plain = {
        "mode": setup.mode.value,
        "families": sorted(family.value for family in setup.families),
        "expected": plain_expected(setup.expected),
        "limit_s": setup.limit_s,
        "root": str(setup.root),
        "kernel_log": setup.kernel_log,
        "site_checks": setup.site_checks,
    }
    return json.dumps(plain).encode()


def read_setup(told: bytes) -> Setup:
    """The setup that ``write_setup`` wrote. Raises KeyError or ValueError for anything else."""
    plain = json.loads(told)
    return Setup(
        mode=CheckMode(plain["mode"]),
        families=frozenset(Family(name) for name in plain["families"]),
        expected=expected_of(plain["expected"], "--expect"),
        limit_s=plain["limit_s"],
        root=Path(plain["root"]),
        kernel_log=plain["kernel_log"],
        site_checks=plain["site_checks"],
    )


def write_message(message: ChildMessage) -> bytes:
    """The message as one line of JSON, with its end."""
    if isinstance(message, CheckFinding):
        text = json.dumps(asdict(message))
    elif isinstance(message, Begins):
        text = json.dumps({"begins": message.what, "stuck": message.stuck.value})
    else:
        text = json.dumps({"done": True})
    return text.encode() + b"\n"


def read_message(line: bytes) -> ChildMessage:
    """The message in a line of a probe.

    Raises KeyError, TypeError or ValueError for a line that a library wrote there by itself.
    """
    plain = json.loads(line)
    if "begins" in plain:
        return Begins(what=str(plain["begins"]), stuck=CheckStatus(plain["stuck"]))
    if "done" in plain:
        return Done()
    value = plain["value"]
    return CheckFinding(
        family=Family(plain["family"]),
        check=_line(plain["check"]),
        status=CheckStatus(plain["status"]),
        reason=_line(plain["reason"]),
        device=_line(plain["device"]),
        remedy=_line(plain["remedy"]),
        value=None if value is None else float(value),
        domain=_line(plain.get("domain", "")),
        device_kind=_line(plain.get("device_kind", "")),
        action=_line(plain.get("action", "")),
    )


def _line(text: object) -> str:
    """One line for a terminal or a scheduler's log, whatever a driver or a mount's name holds."""
    return "".join(c if c.isprintable() else " " for c in str(text)[:_MOST_CHARACTERS])
