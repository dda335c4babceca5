"""Power supplies, fans, heat, processors and memory as the node's management controller (BMC) knows them: ``ipmitool``.

A BMC answers slowly, and may not answer for minutes: the collector runs in a process of its own, and is asked once a
minute. A node without one is not asked. What it says now counts (sensors), and what has happened since the agent looks
(its event log): what stands in the log from before is history, which some never take back.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from ....diagnosis.chassis import ChassisFault, faults_of_sensors, records_of_log
from ..base.collector import Collected, NodeEvent, Timestamps
from ..base.kernel_files import list_names
from ..base.node_condition import NodeCondition, looks_anew

SOURCE = "bmc"
_ANSWER_S = 30.0
_MAX_ANSWER_BYTES = 1 << 20
#: What the log alone tells, and nothing takes back, is over after so long.
_HOUR_NS = 3_600_000_000_000
_LAST_RECORDS = "64"


def ask_ipmitool(words: Sequence[str]) -> str:
    """Its answer, cut after ``_MAX_ANSWER_BYTES``. Raises OSError, or subprocess.SubprocessError where it fails or
    takes longer than 30 s.
    """
    done = subprocess.run(
        ["ipmitool", *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_S, check=True
    )
    return done.stdout[:_MAX_ANSWER_BYTES].decode("utf-8", "replace")


class BmcCollector:
    """root: of the node's devices. ask: ``ipmitool`` with these words; None: that of this node, where it has a BMC."""

    name = "bmc"

    def __init__(
        self, *, root: str | Path = "/", period_s: float = 60.0, ask: Callable[[Sequence[str]], str] | None = None
    ) -> None:
        self.period_s = period_s
        self._root, self._ask = Path(root), ask
        self._told: dict[tuple[str, str], ChassisFault] = {}
        #: Of the event log: the highest number seen, and what its records say that nothing has taken back, and when.
        self._newest: int | None = None
        self._logged: dict[tuple[str, str], tuple[ChassisFault, int]] = {}
        self._has_begun = False

    def collect(self, now: Timestamps) -> Collected:
        """What has begun or ended since the last look. A BMC that cannot be asked is a problem, and blind."""
        ask = self._ask or self._own()
        if ask is None:
            return Collected()
        if isinstance(ask, str):
            return Collected(problems=[ask], blind=True)
        try:
            standing = faults_of_sensors(ask(["sdr", "elist", "all"]))
            log = ask(["sel", "elist", "last", _LAST_RECORDS])
        except (OSError, subprocess.SubprocessError) as error:
            return Collected(problems=[f"the BMC does not answer: {_words(error)}"], blind=True)
        if standing is None:
            return Collected(problems=["ipmitool sdr elist all: the BMC names no sensor"], blind=True)
        self._read_log(log, now)
        return Collected(
            happenings=self._changes({**{key: each for key, (each, _) in self._logged.items()}, **standing}, now)
        )

    def close(self) -> None:
        """Does nothing: nothing is kept open."""
        return

    def _own(self) -> Callable[[Sequence[str]], str] | str | None:
        """How to ask, or why nobody can; None: there is no BMC."""
        if not any(name.startswith("ipmi") for name in list_names(self._root / "dev")):
            return None
        if shutil.which("ipmitool") is None:
            return "this node has a BMC and no ipmitool: install it, or its power supplies and fans are not seen"
        return ask_ipmitool

    def _read_log(self, text: str, now: Timestamps) -> None:
        records = records_of_log(text)
        highest = max((record.number for record in records), default=0)
        if self._newest is None or highest < self._newest:  # the first look; or somebody has cleared it
            self._newest = highest
        for record in records:
            if record.number <= self._newest or record.fault is None:
                continue
            key = (record.fault.condition, record.sensor)
            if record.is_over:
                self._logged.pop(key, None)
            else:
                self._logged[key] = (record.fault, now.mono_ns)
        self._newest = highest
        for key in [key for key, (_, since_ns) in self._logged.items() if now.mono_ns - since_ns >= _HOUR_NS]:
            del self._logged[key]

    def _changes(self, standing: dict[tuple[str, str], ChassisFault], now: Timestamps) -> list[NodeEvent]:
        told: list[NodeEvent] = []
        if not self._has_begun:
            self._has_begun = True
            told.append(looks_anew(SOURCE, now))
        for key, fault in standing.items():
            if key not in self._told:  # a reading that goes on changing is no news
                told.append(_condition(fault).happening(SOURCE, now))
        for key, fault in self._told.items():
            if key not in standing:
                told.append(_condition(fault, is_over=True).happening(SOURCE, now))
        self._told = standing
        return told


def _condition(fault: ChassisFault, *, is_over: bool = False) -> NodeCondition:
    return NodeCondition(
        name=fault.condition,
        device=fault.sensor,
        device_kind="chassis",
        severity=fault.severity,
        domain="hardware",
        action=fault.action,
        text=fault.text,
        is_over=is_over,
    )


def _words(error: Exception) -> str:
    said = getattr(error, "stderr", None)
    text = said.decode("utf-8", "replace").strip() if isinstance(said, bytes) else ""
    return (text or str(error)).splitlines()[-1][:200]
