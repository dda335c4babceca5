"""Checks whose input is a tool's table or a log: NVLink, ibstat, event log, sensors, Slurm, mounts, lost carriers.

Pure. Where the source failed (None), or says nothing that can be read, the check warns: it is broken, the node may not
be. Words that decide lie in ``words.toml``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any

from ..data_file import read_toml
from .outcome import CheckOutcome, CheckStatus, outcome
from .readings import fields, link_words, nvlink_errors, nvlink_states

_CARRIER = re.compile(
    r"(?:^|[\s:])([A-Za-z][A-Za-z0-9_.@-]{0,30})(?:\([^)]{0,60}\))?:\s+(?:link: )?Lost carrier", re.IGNORECASE
)
_IO_ERROR = re.compile(r"\b(?:I/O error|blk_update_request|critical medium error|Buffer I/O error)", re.IGNORECASE)
_IO_DEVICE = re.compile(r"\bdev(?:ice)? ([A-Za-z][A-Za-z0-9_-]{0,30})")
NVLINK_LIMIT = 10


def _broken(check: str) -> CheckOutcome:
    return CheckOutcome(check=check, status=CheckStatus.WARN, reasons=("the source failed or cannot be read",))


def nvlink_is_up(text: str | None) -> CheckOutcome:
    """Whether all NVLinks of all GPUs are up, by the output of ``dcgmi nvlink -s``; WARN where it cannot be read."""
    states = nvlink_states(text)
    if not states or not any(states.values()):
        return _broken("nvlink_state")
    bad = [
        (CheckStatus.CRITICAL, f"GPU {gpu} has {letters.count('D')} NVLinks down and {letters.count('X')} disabled")
        for gpu, letters in states.items()
        if "D" in letters or "X" in letters
    ]
    return outcome("nvlink_state", bad, f"NVLinks of {len(states)} GPUs are up")


def nvlink_has_no_errors(text: str | None, limits: Mapping[str, int] | None = None) -> CheckOutcome:
    """Whether the links of one GPU have few errors, by ``dcgmi nvlink --errors --json``; WARN if unreadable.

    limits: kind of error -> how many are allowed; ``NVLINK_LIMIT`` for kinds that are not in it.
    """
    links = nvlink_errors(text)
    if links is None:
        return _broken("nvlink_errors")
    limits = limits or {}
    bad = [
        (CheckStatus.CRITICAL, f"{link}: {count} of {kind}")
        for link, kinds in links.items()
        for kind, count in kinds.items()
        if count > limits.get(kind, NVLINK_LIMIT)
    ]
    return outcome("nvlink_errors", bad, f"{len(links)} links are within their limits")


def ports_are(text: str | None, key: str, wanted: str) -> CheckOutcome:
    """Whether every port in ibstat's output says ``wanted`` after ``key`` (``State``: Active, ``Physical state``:
    LinkUp).

    WARN where no port says anything.
    """
    words = link_words(text, key)
    if not words:
        return _broken("ibstat")
    bad = [(CheckStatus.CRITICAL, f"{key} is {word}, not {wanted}") for word in words if word != wanted.lower()]
    return outcome("ibstat", bad, f"{key} of {len(words)} ports is {wanted}")


def event_log(text: str | None) -> CheckOutcome:
    """Faults that stand in ``ipmitool sel list``: events that were asserted and not taken back since.

    text None: WARN.
    """
    if text is None:
        return _broken("event_log")
    standing: dict[tuple[str, ...], str] = {}
    for row in fields(text, "|"):
        if len(row) < 5:
            continue
        key = tuple(row[3:5])
        if row[-1].lower() == "deasserted":
            standing.pop(key, None)
        else:
            standing[key] = " | ".join(row[3:])
    bad = [(status, said) for said in standing.values() if (status := _sel_status(said)) is not CheckStatus.OK]
    return outcome("event_log", bad[:16], "no fault stands in the event log")


def sensors(text: str | None) -> CheckOutcome:
    """Power supplies that are not well, in ``ipmi-sensors --comma-separated-output``.

    WARN where that cannot be read.
    """
    if text is None or not (rows := [row for row in fields(text, ",") if len(row) >= 6]):
        return _broken("sensors")
    return outcome("sensors", _bad_sensors(rows), f"{len(rows)} sensors are as they should be")


def slurm_node(state: str | None) -> CheckOutcome:
    """A node's state, as sinfo or scontrol have it: CRITICAL if bad, WARN if planned, WARN if no known word."""
    words = read_words()["slurm"]
    parts = set(re.split(r"[+\s]+", (state or "").upper().strip().rstrip("*~#!%$@^-")))
    if parts & set(words["bad"]):
        return outcome("slurm_node", [(CheckStatus.CRITICAL, f"the node is {state}")], "")
    if parts & set(words["planned"]):
        return outcome("slurm_node", [(CheckStatus.WARN, f"the node is {state}")], "")
    return outcome("slurm_node", [], f"the node is {state}") if parts & set(words["good"]) else _broken("slurm_node")


def mounts(wanted: Collection[str] | None, have: Collection[str] | None) -> CheckOutcome:
    """CRITICAL for each folder of ``wanted`` (fstab) that is not in ``have``; WARN where either is None."""
    if wanted is None or have is None:
        return _broken("mounts")
    missing = sorted(set(wanted) - set(have))
    bad = [(CheckStatus.CRITICAL, f"{folder} is not mounted") for folder in missing]
    return outcome("mounts", bad, f"{len(set(wanted))} folders are mounted")


def lost_carriers(log: str | None) -> CheckOutcome:
    """Interfaces of which a system log says that they lost their carrier, by the table of words. log None: WARN."""
    if log is None:
        return _broken("lost_carriers")
    names = dict.fromkeys(_CARRIER.findall(log))
    bad = []
    for name in names:
        for entry in read_words()["carrier"]:
            if re.match(entry["interfaces"], name):
                bad.append((CheckStatus(entry["status"]), f"{name} lost its carrier"))
                break
    return outcome("lost_carriers", bad[:64], "no interface lost its carrier")


def io_errors(log: str | None) -> CheckOutcome:
    """CRITICAL for each disk of which the kernel log says that it had I/O errors. log None: WARN."""
    if log is None:
        return _broken("io_errors")
    lines = [line for line in log.splitlines() if _IO_ERROR.search(line)]
    devices = sorted({found.group(1) if (found := _IO_DEVICE.search(line)) else "a disk" for line in lines})
    return outcome(
        "io_errors", [(CheckStatus.CRITICAL, f"{device} had I/O errors") for device in devices], "no I/O error"
    )


def exists(path: str, found: bool | None, *, wanted: bool = True) -> CheckOutcome:
    """Whether a file or folder is there as ``wanted`` (False: it must not be); CRITICAL if not.

    found: whether it is there; None: nobody could look, WARN.
    """
    if found is None:
        return _broken("exists")
    word = "is missing" if wanted else "is there and must not be"
    return outcome(
        "exists", [] if found is wanted else [(CheckStatus.CRITICAL, f"{path} {word}")], f"{path} is as wanted"
    )


@cache
def read_words() -> dict[str, Any]:
    """words.toml: what the tools' tables call things that are well."""
    return read_toml(__package__ or "", "words.toml")


def _sel_status(said: str) -> CheckStatus:
    text = said.lower()
    for entry in read_words()["sel"]:
        if any(word in text for word in entry["words"]) and not any(word in text for word in entry.get("unless", ())):
            return CheckStatus(entry["status"])
    return CheckStatus.OK


def _bad_sensors(rows: list[list[str]]) -> Iterator[tuple[CheckStatus, str]]:
    for row in rows:
        name, kind = row[1].lower(), row[2].lower()
        # The last column lists every event in quotes; only the expected one may be there.
        events = [event.lower() for event in re.findall(r"'([^']*)'", row[-1])]
        for entry in read_words()["sensor"]:
            fits = any(word in name for word in entry["names"]) or any(word in kind for word in entry["names"])
            if not fits:
                continue
            if events != [entry["expected"]]:
                yield CheckStatus(entry["status"]), f"{row[1]}: {row[-1][:120]}, expected {entry['expected']!r}"
            break
