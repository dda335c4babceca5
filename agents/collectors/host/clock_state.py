"""What the kernel knows of its wall clock's error: the words of whoever disciplines it (chrony, ntpd, timesyncd, PTP).

Asks by ``adjtimex`` with nothing to change, which needs no right. An error of 0 that nobody stands for is no answer.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

_STA_UNSYNC = 0x0040
_STA_NANO = 0x2000


class _Timex(ctypes.Structure):
    """struct timex of 64-bit Linux."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time", ctypes.c_long * 2),
        ("tick", ctypes.c_long),
        ("ppsfreq", ctypes.c_long),
        ("jitter", ctypes.c_long),
        ("shift", ctypes.c_int),
        ("stabil", ctypes.c_long),
        ("jitcnt", ctypes.c_long),
        ("calcnt", ctypes.c_long),
        ("errcnt", ctypes.c_long),
        ("stbcnt", ctypes.c_long),
        ("tai", ctypes.c_int),
        ("reserved", ctypes.c_int * 11),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockState:
    """Seconds. offset_s: what is still to be corrected. All but ``synchronized`` mean nothing without it."""

    synchronized: bool
    offset_s: float
    estimated_error_s: float
    max_error_s: float


def read_clock() -> ClockState:
    """Asks the kernel (adjtimex) for the wall clock's state. Raises OSError where the kernel or a sandbox refuses."""
    state = _Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(ctypes.byref(state)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return ClockState(
        synchronized=not state.status & _STA_UNSYNC,
        offset_s=state.offset / (1e9 if state.status & _STA_NANO else 1e6),
        estimated_error_s=state.esterror / 1e6,
        max_error_s=state.maxerror / 1e6,
    )
