"""Kernel lines: text of dmesg, /dev/kmsg, syslog or journald in, faults with their devices out.

``KernelLogReader`` reads line by line; rules and tables are the data files beside it; ``recurrence`` judges repeats.
"""

from .event import DeviceKind, Domain, EventSeverity, KernelEvent, Repair
from .kernel_log_reader import KernelLogReader

__all__ = ["DeviceKind", "Domain", "EventSeverity", "KernelEvent", "KernelLogReader", "Repair"]
