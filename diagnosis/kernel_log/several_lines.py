"""Faults that take several lines: an OOM kill, a panic, a GPU that leaves the bus, a CPU stuck in the NIC's polling.

Each follower sees the lines that may belong to it, keeps one open case at most, and gives it up after some lines.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, replace

from .device import canonical_pci
from .event import KernelEvent, KernelStamp
from .oops import WHO
from .rules import event_of, event_rules

OOM_KILL = "oom_kill"
CGROUP_OOM_KILL = "cgroup_oom_kill"
KERNEL_PANIC = "kernel_panic"
OFF_THE_BUS = "gpu_off_the_bus"
SOFT_LOCKUP = "soft_lockup"
NAPI_SOFT_LOCKUP = "mlx5_napi_soft_lockup"

_INVOKED = re.compile(r"\binvoked oom-killer: ")
_MODERN = re.compile(
    r"\boom-kill:constraint=(?P<constraint>\w{1,40}),.{0,4000}?task=(?P<process>[^\n]{1,64}?),pid=(?P<pid>\d{1,10}),uid="
)
_MEMCG = re.compile(r"\boom_memcg=(?P<memcg>[^,\s]{1,400})")
_LIMIT_OF = re.compile(r"\bTask in \S{1,400} killed as a result of limit of (?P<memcg>\S{1,400})")
_KILL = re.compile(
    r"[oO]ut of memory\b[^\n]{0,40}: [Kk]ill process (?P<pid>\d{1,10}) \((?P<process>[^\n]{1,64}?)\) score"
)
_KILLED = re.compile(r"(?:^|: )[Kk]illed process (?P<pid>\d{1,10})(?:, UID \d{1,10})?,? \((?P<process>[^\n]{1,64}?)\)")
_REAPED = re.compile(r"\boom_reaper: reaped process (?P<pid>\d{1,10}) \((?P<process>[^\n]{1,64}?)\)")
_RSS = re.compile(r"\banon-rss:(?P<anon_rss_kb>\d{1,15})kB")


class OomFollower:
    """One event per killed process, however many of its lines are there, in the words of kernels from 3.10 on."""

    WORDS = ("oom-kill", "ill process", "illed process", "killed as a result of limit", "oom_reaper: reaped")
    #: The line that says "Killed" comes at once; a process table of a large node may stand between, on a slow console.
    ONE_KILL_S = 60.0
    #: Killed processes remembered, for what is said of them later.
    KILLS = 64
    #: Every line that counts has one of the words.
    lines_left = 0

    def __init__(self) -> None:
        self._memcg: str | None = None
        self._told: tuple[str, KernelStamp] | None = None
        self._held: KernelEvent | None = None
        #: Somebody asked for memory; whom it cost the log does not say any more, if it ends here.
        self._invoked: KernelEvent | None = None
        self._killed: deque[str] = deque(maxlen=self.KILLS)

    def read(self, text: str, stamp: KernelStamp) -> list[KernelEvent]:
        """Reads a line: the OOM kill, with who asked for memory, once its last line has come; else []."""
        held = self._held
        if held is None or _when(held).is_within(self.ONE_KILL_S, stamp):
            return self._read(text, stamp)
        # Its "Killed" is not in the log, and what is said now is of another one.
        self._forget()
        return [held, *self._read(text, stamp)]

    def _read(self, text: str, stamp: KernelStamp) -> list[KernelEvent]:
        if _INVOKED.search(text):
            out = self.flush()
            self._invoked = self._event(text, stamp, "", "")
            return out
        if (reaped := _REAPED.search(text)) is not None:
            # Says again what another line has said, unless that line was cut off.
            if reaped["pid"] in self._killed or self._held is not None:
                return []
            return [self._event(text, stamp, reaped["process"], reaped["pid"])]
        self._invoked = None
        if (modern := _MODERN.search(text)) is not None:
            out = self.flush()
            memcg = _MEMCG.search(text)
            if modern["constraint"] == "CONSTRAINT_MEMCG":
                self._memcg = memcg["memcg"] if memcg else ""
            self._told = (modern["pid"], stamp)
            return [*out, self._event(text, stamp, modern["process"], modern["pid"])]
        if (limit := _LIMIT_OF.search(text)) is not None:
            self._memcg = limit["memcg"]
            return []
        if "Memory cgroup out of memory" in text:
            self._memcg = self._memcg or ""
        elif "Out of memory" in text:
            self._memcg = None
        if (kill := _KILL.search(text)) is not None:
            # Old kernels may spare this one and kill a child instead: what "Killed" names is what died.
            before, self._held = self._held, self._event(text, stamp, kill["process"], kill["pid"])
            return [before] if before is not None and before.pid != self._held.pid else []
        if (killed := _KILLED.search(text)) is not None:
            told = self._told
            event = self._event(text, stamp, killed["process"], killed["pid"])
            self._forget()
            is_told = told is not None and told[0] == killed["pid"] and told[1].is_within(self.ONE_KILL_S, stamp)
            return [] if is_told else [event]
        return []

    def flush(self) -> list[KernelEvent]:
        """Gives what is known of a kill whose last line never came, if any."""
        held = self._held or self._invoked
        self._forget()
        return [held] if held is not None else []

    def _forget(self) -> None:
        self._held, self._memcg, self._told, self._invoked = None, None, None, None

    def _event(self, text: str, stamp: KernelStamp, process: str, pid: str) -> KernelEvent:
        rule = event_rules()[OOM_KILL if self._memcg is None else CGROUP_OOM_KILL]
        facts = found.groupdict() if (found := _RSS.search(text)) else {}
        if pid:
            self._killed.append(pid)
        device = self._memcg or ""
        event = event_of(rule, text, device=device, process=process, pid=int(pid) if pid else None, facts=facts)
        return stamp.on(event)


def _when(event: KernelEvent) -> KernelStamp:
    return KernelStamp(time_s=event.time_s, monotonic_s=event.monotonic_s, host=event.host)


_PANIC = re.compile(r"(?<!end )Kernel [pP]anic - not syncing: ?(?P<reason>[^\n\"]{0,200})")


class PanicFollower:
    """Holds the panic until the line that says on which CPU and in which process it was."""

    LINES = 12
    WORDS = ("anic - not syncing",)

    def __init__(self) -> None:
        self.lines_left = 0
        self._held: KernelEvent | None = None

    def read(self, text: str, stamp: KernelStamp) -> list[KernelEvent]:
        """Reads a line: the panic, once a line tells whose process it struck, or the one before a new panic.

        Else [].
        """
        if (panic := _PANIC.search(text)) is not None:
            out = self.flush()
            self._held = stamp.on(event_of(event_rules()[KERNEL_PANIC], text, facts={"reason": panic["reason"]}))
            self.lines_left = self.LINES
            return out
        if self._held is not None and (who := WHO.search(text)) is not None:
            facts = {**self._held.facts, "cpu": who["cpu"]}
            self._held = replace(self._held, process=who["process"], pid=int(who["pid"]), facts=facts)
            return self.flush()
        return []

    def flush(self) -> list[KernelEvent]:
        """Gives a panic of which no process was told, if any."""
        held, self._held, self.lines_left = self._held, None, 0
        return [held] if held is not None else []


_THE_GPU = re.compile(r"NVRM: The NVIDIA GPU (?P<device>\S{7,40}?)(?:\s|$)")


class BusFollower:
    """``The NVIDIA GPU A`` / ``(PCI ID: …) installed in this system has`` / ``fallen off the bus``, a line each."""

    LINES = 12
    WORDS = ("The NVIDIA GPU", "fallen off the bus")

    def __init__(self) -> None:
        self.lines_left = 0
        self._device: str | None = None

    def read(self, text: str, stamp: KernelStamp) -> list[KernelEvent]:
        """Reads a line: the event, once one without an Xid says that the GPU named before has fallen off the bus.

        Else [].
        """
        if (named := _THE_GPU.search(text)) is not None:
            self._device = canonical_pci(named["device"])
            self.lines_left = self.LINES
        if self._device is None or "fallen off the bus" not in text or "NVRM" not in text or "Xid" in text:
            return []
        event = stamp.on(event_of(event_rules()[OFF_THE_BUS], text, device=self._device))
        self.flush()
        return [event]

    def flush(self) -> list[KernelEvent]:
        """Forgets the GPU that was named. Always []: nothing is told of one that was only named."""
        self._device, self.lines_left = None, 0
        return []


_NAPI_FRAME = re.compile(
    r"(?:^|\s|:)(?:mlx5e?_\w{0,40}(?:napi|poll|_cq)\w{0,40})\+0x[0-9a-f]+/0x[0-9a-f]+ \[mlx5_core\]"
)


@dataclass(slots=True)
class NapiFollower:
    """After a soft lock-up: does the stack show the NIC driver's polling? Frames marked "?" are its guesses."""

    LINES = 150
    lines_left: int = 0
    _lockup: KernelEvent | None = None

    def begin(self, lockup: KernelEvent) -> None:
        """Notes a soft lockup: the stack in the lines to come may show the NIC driver's polling."""
        self._lockup, self.lines_left = lockup, self.LINES

    def read(self, text: str, stamp: KernelStamp) -> list[KernelEvent]:
        """Reads a line: the lockup as one of the NIC's driver, once a frame says so; else []."""
        lockup = self._lockup
        if lockup is None or not _NAPI_FRAME.search(text) or text.lstrip().startswith("?"):
            return []
        facts = {"cpu": lockup.device.removeprefix("cpu"), **lockup.facts}
        rule = event_rules()[NAPI_SOFT_LOCKUP]
        event = stamp.on(event_of(rule, text, process=lockup.process, pid=lockup.pid, facts=facts))
        self.flush()
        return [event]

    def flush(self) -> list[KernelEvent]:
        """Forgets the lockup, which has been told itself. Always []."""
        self._lockup, self.lines_left = None, 0
        return []
