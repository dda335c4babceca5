"""Kernel lines: text of dmesg, /dev/kmsg, syslog or journald in, faults with their devices out.

``KernelLogReader`` reads line by line; rules and tables are the data files beside it; ``recurrence`` judges repeats.
"""

from .event import DeviceKind, Domain, KernelEvent, Repair, Severity
from .reader import KernelLogReader

__all__ = ["DeviceKind", "Domain", "KernelEvent", "KernelLogReader", "Repair", "Severity"]
