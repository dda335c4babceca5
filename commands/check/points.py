"""Findings of what collectors read: the tables of limits and peers, with what the configuration expects."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from ...agents.collectors.base.collector import Timestamps
from ...diagnosis.health_checks.outcome import CheckStatus
from ...diagnosis.health_checks.point_limits import Judged, judge_peers, judge_points, worst_of_each
from ...telemetry.records import Point
from .check_setup import Setup, Tell
from .finding import CheckFinding, Family


def moment() -> Timestamps:
    """Now, on both clocks: what collectors are asked with."""
    return Timestamps(wall_ns=time.time_ns(), mono_ns=time.monotonic_ns())


def tell_points(setup: Setup, points: Sequence[Point], families: Iterable[Family], tell: Tell) -> None:
    """Judges points by the tables of limits and peers: tells what is wrong one by one, what is well as one line per
    check.

    families: those that the setup has chosen of them.
    """
    names = [family.value for family in families if family in setup.families]
    judged = worst_of_each([*judge_points(points, names, setup.expected.number), *judge_peers(points, names)])
    fine: dict[tuple[str, str], list[Judged]] = {}
    for each in judged:
        if each.status is CheckStatus.OK:
            fine.setdefault((each.family, each.check), []).append(each)
        else:
            tell.found(
                CheckFinding(
                    family=Family(each.family),
                    check=each.check,
                    status=each.status,
                    device=each.device,
                    reason=each.reason,
                    remedy=each.remedy,
                    value=each.value,
                )
            )
    for (family, check), group in fine.items():
        highest = max(group, key=lambda each: each.value or 0.0)
        of = f" (highest of {len(group)})" if len(group) > 1 else ""
        tell.found(
            CheckFinding(
                family=Family(family),
                check=check,
                status=CheckStatus.OK,
                reason=highest.reason + of,
                value=highest.value,
            )
        )
