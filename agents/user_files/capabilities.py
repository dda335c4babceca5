"""Which of root's rights the agent keeps: those that it needs and no others; each child has no more.

To be called once, at the start, before there are threads: capabilities are each thread's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from . import rights

#: What the agent does with each. Files of others it opens in their helpers, never by DAC_OVERRIDE.
NEEDED = {
    "DAC_READ_SEARCH": "environments and counters of ranks in /proc, the system's log file",
    "KILL": "ends helpers of users, which have their uid",
    "SETGID": "starts helpers of users",
    "SETPCAP": "takes from helpers what they could get by starting a program",
    "SETUID": "starts helpers of users",
    "SYS_ADMIN": "kernel stacks of blocked ranks; can be left out",
    "SYS_PTRACE": "ranks' environments and descriptors, stacks by py-spy",
    "SYSLOG": "the kernel log",
}
#: Numbers of linux/capability.h.
_NUMBERS = {
    "DAC_READ_SEARCH": 2, "KILL": 5, "SETGID": 6, "SETUID": 7, "SETPCAP": 8, "SYS_PTRACE": 19, "SYS_ADMIN": 21,
    "SYSLOG": 34,
}  # fmt: skip
_OF_FILES = ("DAC_READ_SEARCH",)
_BECOMES_OTHERS = ("SETGID", "SETUID")


def keep_needed() -> list[str]:
    """Drops every other capability, and returns the names of those that are left, sorted.

    Who cannot start helpers watches his own jobs alone, and keeps nothing that opens others' files.
    """
    there = effective()
    kept = [name for name in NEEDED if name in there]
    if not has(_BECOMES_OTHERS):
        kept = [name for name in kept if name not in _OF_FILES]
    with contextlib.suppress(OSError):
        rights.drop_from_bounding_set([_NUMBERS[name] for name in kept])
        rights.drop_capabilities([_NUMBERS[name] for name in kept])
    return sorted(effective())


def effective() -> frozenset[str]:
    """Names of those of ``NEEDED`` that this thread has now."""
    with contextlib.suppress(OSError):
        bits = rights.effective_capabilities()
        return frozenset(name for name, number in _NUMBERS.items() if bits >> number & 1)
    return frozenset()


def has(names: Iterable[str]) -> bool:
    """Whether this thread has all of these now."""
    return effective().issuperset(names)


def can_become_others() -> bool:
    """Whether users' helpers can be started."""
    return has(_BECOMES_OTHERS)


assert _NUMBERS.keys() == NEEDED.keys()
