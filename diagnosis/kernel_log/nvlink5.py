"""Decodes Xid 144-150 (NVLink 5): which unit, how bad, what to do. The driver decides how to read the first register.

``intrinfo`` names the unit in bits 9:5 before driver R575 (version 1) and in bits 6:0 since (version 2), and the reason
of a link event in bits 25:20. ``status`` has a bit per error of the unit. Table: nvlink5.tsv.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from .event import Domain, EventSeverity, Repair
from .kernel_log_tables import read_tsv

#: First driver branch that writes version 2.
VERSION_2_DRIVER = 575
CODES = range(144, 151)
#: Units whose status is a number, not one bit per error.
_NUMBERED = ("NETIR", "MSE")

_BODY = re.compile(
    r"\b(?P<unit>[A-Z][A-Z0-9]{1,15}(?:_[A-Z0-9]{1,15}){0,6}(?:/[A-Z0-9_]{2,40})?(?: Degraded)?)\s+"
    r"(?P<severity>Fatal|Non-?fatal)\b(?:\s+XC(?P<contained>\d))?(?:\s+i(?P<injected>\d))?"
    r"(?:\s+Link\s+(?P<link>-?\d{1,3}))?(?:\s*\((?P<registers>0x[0-9a-fA-F]{1,8}(?:[ ,]+0x[0-9a-fA-F]{1,8}){0,9}))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvlink5Row:
    """``unit_v1``: the name older drivers print. ``status`` None: any. ``promoted_repair``: if it was promoted."""

    xid: int
    unit_v1: str
    unit_v2: str
    v1: int
    v2: int
    reason: int
    status: int | None
    severity: EventSeverity
    domain: Domain
    repair: Repair
    promoted_repair: Repair
    investigate: str

    def is_unit(self, names: Iterable[str]) -> bool:
        """Whether the row is of a unit of one of these names, old or new."""
        return any(name in (self.unit_v1, self.unit_v2) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvlink5:
    """What one line says. ``subcode``: the reason, bits 25:20. ``row`` None: the driver's table knows no such error."""

    unit: str
    subcode: int
    status: int
    intrinfo: int
    link: int | None
    is_fatal: bool
    is_injected: bool
    version: int
    row: Nvlink5Row | None
    is_promoted: bool


@cache
def table() -> tuple[Nvlink5Row, ...]:
    """What the driver's table says of NVLink 5 errors: the rows of nvlink5.tsv."""
    return tuple(
        Nvlink5Row(
            xid=int(row["xid"]),
            unit_v1=row["unit_v1"],
            unit_v2=row["unit_v2"],
            v1=int(row["v1"]),
            v2=int(row["v2"]),
            reason=int(row["reason"]),
            status=int(row["status"], 16) if row["status"] else None,
            severity=EventSeverity(row["severity"]),
            domain=Domain(row["domain"]),
            repair=Repair(row["repair"]),
            promoted_repair=Repair(row["promoted_repair"]),
            investigate=row["investigate"],
        )
        for row in read_tsv("nvlink5.tsv")
    )


def decode(xid: int, text: str, driver_major: int | None) -> Nvlink5 | None:
    """What an Xid 144-150 says; None if the line has not their form, or was cut before its registers.

    text: the line after its code. driver_major: 570 of "570.148.08"; None: told from the line's own unit.
    """
    body = _BODY.search(text)
    if body is None or not body["registers"]:
        return None
    registers = [int(number, 16) for number in body["registers"].replace(",", " ").split()]
    intrinfo = registers[0]
    status = registers[1] if len(registers) > 1 else 0
    unit = body["unit"]
    names = [unit.upper().replace(" ", "_"), *unit.split("/")]
    version, row = _find(xid, names, intrinfo, status, driver_major)
    is_promoted = row is not None and bool(row.promoted_repair.value) and bool(intrinfo >> (10, 7)[version - 1] & 1)
    return Nvlink5(
        unit=unit,
        subcode=intrinfo >> 20 & 0x3F,
        status=status,
        intrinfo=intrinfo,
        link=int(body["link"]) if body["link"] else None,
        is_fatal=body["severity"] == "Fatal",
        is_injected=body["injected"] not in (None, "0"),
        version=version,
        row=row,
        is_promoted=is_promoted,
    )


def _find(
    xid: int, names: list[str], intrinfo: int, status: int, driver_major: int | None
) -> tuple[int, Nvlink5Row | None]:
    rows = [row for row in table() if row.xid == xid]
    if driver_major is not None:
        version = 2 if driver_major >= VERSION_2_DRIVER else 1
        return version, _best(_decoded(rows, version, intrinfo), names, status)
    for version in (2, 1):
        named = [row for row in _decoded(rows, version, intrinfo) if row.is_unit(names)]
        if (row := _best(named, names, status)) is not None:
            return version, row
    # A register that fits neither version: the name the driver printed still says which unit it was.
    reason = intrinfo >> 20 & 0x3F
    named = [row for row in rows if row.is_unit(names)]
    return 2, _best([row for row in named if row.reason == reason] or named, names, status)


def _decoded(rows: list[Nvlink5Row], version: int, intrinfo: int) -> list[Nvlink5Row]:
    reason = intrinfo >> 20 & 0x3F
    if version == 1:
        return [row for row in rows if row.reason == reason and row.v1 == intrinfo >> 5 & 0x1F]
    return [row for row in rows if row.reason == reason and row.v2 == intrinfo & 0x7F]


def _best(rows: list[Nvlink5Row], names: list[str], status: int) -> Nvlink5Row | None:
    """The row with that status; of several errors at once the worst."""
    exact = [row for row in rows if row.status is None or row.status == status]
    if not exact:
        exact = [row for row in rows if row.status and row.status & status and not row.unit_v1.startswith(_NUMBERED)]
    exact.sort(key=lambda row: (not row.is_unit(names), row.severity is not EventSeverity.FATAL))
    return exact[0] if exact else None
