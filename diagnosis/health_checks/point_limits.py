"""Values that collectors read, against limits (``node_limits``) and against their peers (``peers.toml``). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf
from typing import Any

from ...telemetry.records import Point
from ..data_file import read_toml
from ..node_limits.table import rows_of
from .outcome import CheckStatus

#: Labels that say which of several it is, the first that a point has after its device.
_FINER = (
    "whichrank.gpu.nvlink.link",
    "whichrank.gpu.ecc.memory",
    "whichrank.controller",
    "whichrank.package",
    "whichrank.cgroup",
)
_LIMITS = ("warn_above", "critical_above", "warn_below", "critical_below")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One limit of ``whichrank check``, for points of ``metric`` that carry all attributes of ``where``.

    family, check: where it is reported, and its name; several limits of one name are places where the same is read.
    expected: key of the --expect file that takes the place of the critical limit; the warning limit then goes.
    scale: what a value is multiplied with before it is held against the limit and shown, then in ``unit``.
    """

    family: str
    check: str
    metric: str
    shows: str
    remedy: str
    where: Mapping[str, str] = field(default_factory=dict)
    warn_above: float = inf
    critical_above: float = inf
    warn_below: float = -inf
    critical_below: float = -inf
    expected: str = ""
    scale: float = 1.0
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """``label``: compared in place of the value. ``tolerance``: a share of the value that most have."""

    family: str
    check: str
    metric: str
    shows: str
    remedy: str
    status: CheckStatus
    labels: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    tolerance: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """``value``: as told, in the rule's unit; None: a text was compared."""

    family: str
    check: str
    device: str
    status: CheckStatus
    reason: str
    remedy: str
    value: float | None = None


@cache
def limits() -> tuple[Limit, ...]:
    """The limits of ``whichrank check`` from ``node_limits``. Raises TypeError or ValueError for a wrong entry."""
    read = tuple(Limit(**entry) for entry in rows_of("check"))
    for entry in read:
        if not entry.expected and all(abs(getattr(entry, name)) == inf for name in _LIMITS):
            raise ValueError(f"node_limits: {entry.family}.{entry.check} has no limit")
    return read


@cache
def peers() -> tuple[Peer, ...]:
    """What must be alike on a node's devices, from peers.toml. Raises TypeError or ValueError for a wrong entry."""
    entries = read_toml(__package__ or "", "peers.toml")["peer"]
    return tuple(Peer(**{**entry, "status": CheckStatus(entry["status"])}) for entry in entries)


def judge_points(
    points: Iterable[Point], families: Iterable[str], expected: Callable[[str], float | None]
) -> list[Judged]:
    """Points against the limits of these families: one result per limit and point that it is for, OK ones included.

    expected: gives the value of a key of the --expect file, None without one.
    """
    by_metric = _by_metric(points)
    chosen = set(families)
    judged: list[Judged] = []
    for limit in limits():
        if limit.family in chosen:
            given = expected(limit.expected) if limit.expected else None
            for point in by_metric.get(limit.metric, ()):
                if _carries(point, limit.where):
                    judged.append(_judge(limit, point, given))
    return judged


def judge_peers(points: Iterable[Point], families: Iterable[str]) -> list[Judged]:
    """Devices whose value is not that of most of the others, for rules of these families.

    Two that differ: nobody knows which, both are told.
    """
    by_metric = _by_metric(points)
    chosen = set(families)
    judged: list[Judged] = []
    for peer in peers():
        if peer.family not in chosen:
            continue
        of_device: dict[str, Any] = {}
        for point in by_metric.get(peer.metric, ()):
            if _carries(point, peer.labels) and "hw.name" in point.attributes:
                value = point.attributes.get(peer.label, "") if peer.label else point.value
                if value != "":  # one that is lost does not say
                    of_device[str(point.attributes["hw.name"])] = value
        judged += _odd_ones(peer, of_device)
    return judged


def _odd_ones(peer: Peer, of_device: Mapping[str, Any]) -> list[Judged]:
    counts = Counter(of_device.values())
    if len(counts) < 2:
        return []
    ((usual, most), *_) = counts.most_common(1)
    is_split = sum(count == most for count in counts.values()) > 1
    odd = [(device, value) for device, value in of_device.items() if is_split or not _alike(value, usual, peer)]
    if is_split and all(_alike(value, usual, peer) for value in counts):
        return []
    return [
        Judged(
            family=peer.family,
            check=peer.check,
            device=device,
            status=CheckStatus.WARN if is_split else peer.status,
            reason=f"{peer.shows}: {_shown(value)}, "
            + ("and the GPUs of this node do not agree" if is_split else f"{_shown(usual)} on {most} others"),
            remedy=peer.remedy,
            value=None if isinstance(value, str) else float(value),
        )
        for device, value in odd
    ]


def _alike(value: Any, usual: Any, peer: Peer) -> bool:
    if isinstance(value, str) or isinstance(usual, str):
        return bool(value == usual)
    return bool(abs(value - usual) <= peer.tolerance * abs(usual))


def _judge(limit: Limit, point: Point, given: float | None) -> Judged:
    value = point.value * limit.scale
    above = limit.warn_above < inf or limit.critical_above < inf
    warn_above, critical_above = limit.warn_above, limit.critical_above
    warn_below, critical_below = limit.warn_below, limit.critical_below
    if given is not None:
        warn_above, warn_below = inf, -inf
        critical_above, critical_below = (given, -inf) if above else (inf, given)
    status, crossed = CheckStatus.OK, 0.0
    for each, bound, is_crossed in (
        (CheckStatus.CRITICAL, critical_above, value > critical_above),
        (CheckStatus.CRITICAL, critical_below, value < critical_below),
        (CheckStatus.WARN, warn_above, value > warn_above),
        (CheckStatus.WARN, warn_below, value < warn_below),
    ):
        if is_crossed:
            status, crossed = each, bound
            break
    unit = f" {limit.unit}" if limit.unit else ""
    reason = f"{limit.shows}: {_shown(value)}{unit}"
    if status is not CheckStatus.OK:
        reason += f", limit {_shown(crossed)}{unit}"
    return Judged(
        family=limit.family,
        check=limit.check,
        device=_device(point),
        status=status,
        reason=reason,
        remedy="" if status is CheckStatus.OK else limit.remedy,
        value=value,
    )


def _device(point: Point) -> str:
    name = str(point.attributes.get("hw.name", ""))
    finer = next((str(point.attributes[label]) for label in _FINER if label in point.attributes), "")
    return f"{name} link {finer}" if name and finer else name or finer


def _by_metric(points: Iterable[Point]) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.name, []).append(point)
    return found


def _carries(point: Point, labels: Mapping[str, str]) -> bool:
    return all(point.attributes.get(name) == text for name, text in labels.items())


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value[:80]
    return f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"


def worst_of_each(judged: Sequence[Judged]) -> list[Judged]:
    """The heaviest result for each check of each device."""
    order = (CheckStatus.CRITICAL, CheckStatus.WARN, CheckStatus.UNKNOWN, CheckStatus.OK)
    found: dict[tuple[str, str, str], Judged] = {}
    for each in judged:
        key = (each.family, each.check, each.device)
        if key not in found or order.index(each.status) < order.index(found[key].status):
            found[key] = each
    return list(found.values())
