"""What one kernel line says: the event, on which device, how bad, whose fault it may be and what to do.

Closed sets of words and the one record; no parsing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ...telemetry.ring_layout import cut_text
from ...telemetry.vocabulary import Action, CausalRole


class DeviceKind(str, Enum):
    GPU = "gpu"
    NVSWITCH = "nvswitch"
    NIC = "nic"
    PCIE = "pcie"
    DISK = "disk"
    FILESYSTEM = "filesystem"
    MOUNT = "mount"
    MEMORY = "memory"
    CPU = "cpu"
    HOST = "host"
    PROCESS = "process"


class EventSeverity(str, Enum):
    """Of the event for its device, not for a job: what pages is decided where jobs are known."""

    #: The device is of no use until it is reset, repaired or replaced.
    FATAL = "fatal"
    #: Work was lost: an application, a request, a file.
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Domain(str, Enum):
    """Where the cause is looked for first."""

    HARDWARE = "hardware"
    APPLICATION = "application"
    NETWORK = "network"
    STORAGE = "storage"
    HOST = "host"
    SOFTWARE = "software"


class Repair(str, Enum):
    """What brings the device back, in the words of those who run it; ``Action`` says what to do with the job."""

    NONE = ""
    IGNORE = "ignore"
    RESTART_APP = "restart_app"
    RESET_GPU = "reset_gpu"
    RESTART_VM = "restart_vm"
    REBOOT_NODE = "reboot_node"
    REPLACE_NODE = "replace_node"
    CHECK_MECHANICALS = "check_mechanicals"
    UPDATE_SOFTWARE = "update_software"
    CONTACT_SUPPORT = "contact_support"
    RUN_DIAGNOSTICS = "run_diagnostics"
    #: An Xid 154 beside it says; without one the application is restarted.
    FOLLOW_XID_154 = "follow_xid_154"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEvent:
    """One fault, or one sign of recovery, as the kernel log tells it.

    event: a word of ``rules.event_words()``. code: the number of an Xid or SXid, the name of a status; else "".
    device: in canonical form (``device.py``); "" where the line names none.
    time_s: Unix seconds, None where no line of this log had a wall clock. monotonic_s: seconds since boot.
    facts: what else the line tells, by name (``link``, ``unit``, ``subcode``, ``gpc``, ``memcg``, ``sector`` ...).
    text: the line without its prefix, at most ``TEXT_CHARACTERS``. also: names other monitors have for the event.
    """

    event: str
    device_kind: DeviceKind
    severity: EventSeverity
    component: str
    domain: Domain
    action: Action
    text: str
    code: str = ""
    device: str = ""
    repair: Repair = Repair.NONE
    role: CausalRole = CausalRole.INITIATING
    meaning: str = ""
    process: str = ""
    pid: int | None = None
    time_s: float | None = None
    monotonic_s: float | None = None
    host: str = ""
    facts: Mapping[str, str] = field(default_factory=dict, hash=False)
    also: tuple[str, ...] = ()


#: Longer lines are cut: nothing that a rule needs stands so far out.
TEXT_CHARACTERS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelStamp:
    """When and where a line was written, as far as it says."""

    time_s: float | None = None
    monotonic_s: float | None = None
    host: str = ""

    @property
    def when_s(self) -> float | None:
        """Seconds, Unix where the line says so, else since boot; None where it says neither."""
        return self.monotonic_s if self.time_s is None else self.time_s

    def on(self, event: KernelEvent) -> KernelEvent:
        """The event with this time and host, its text cut to ``TEXT_CHARACTERS``.

        Written out: ``replace`` takes four times as long, and this is done for every event.
        """
        return KernelEvent(
            event=event.event,
            device_kind=event.device_kind,
            severity=event.severity,
            component=event.component,
            domain=event.domain,
            action=event.action,
            text=cut_text(event.text, TEXT_CHARACTERS),
            code=event.code,
            device=event.device,
            repair=event.repair,
            role=event.role,
            meaning=event.meaning,
            process=event.process,
            pid=event.pid,
            time_s=self.time_s,
            monotonic_s=self.monotonic_s,
            host=self.host,
            facts=event.facts,
            also=event.also,
        )

    def until(self, later: KernelStamp) -> float | None:
        """Seconds from this stamp to ``later``; None if the two have no clock in common."""
        if self.monotonic_s is not None and later.monotonic_s is not None:
            return later.monotonic_s - self.monotonic_s
        if self.time_s is not None and later.time_s is not None:
            return later.time_s - self.time_s
        return None

    def is_within(self, window_s: float, later: KernelStamp) -> bool:
        """Whether ``later`` comes at most ``window_s`` after this stamp; True without a common clock.

        There the order of lines is all there is, and counts.
        """
        gap_s = self.until(later)
        return gap_s is None or 0 <= gap_s <= window_s
