"""Giving up rights: limits, capabilities, another user's ids. Imports little: helpers start with it."""

from __future__ import annotations

import ctypes
import os
import resource
from _collections_abc import Sequence
from struct import Struct

_CAP_SYS_PTRACE = 19
#: KILL, SETGID, SETUID, SETPCAP, and what helpers of root and tracers keep.
STARTER_CAPABILITIES = (5, 6, 7, 8, _CAP_SYS_PTRACE)
_PR_SET_NAME = 15
_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 8, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
#: Version 3, this thread.
_CAPABILITY_HEADER = Struct("=Ii").pack(0x20080522, 0)
HELPER_LIMITS = (
    (resource.RLIMIT_AS, 192 << 20),
    (resource.RLIMIT_CPU, 120),
    (resource.RLIMIT_FSIZE, 0),
    (resource.RLIMIT_NOFILE, 32),
    (resource.RLIMIT_CORE, 0),
    (resource.RLIMIT_NPROC, 0),
)
#: Of a program that looks into a process: it maps that one's libraries, so what counts is what it writes to.
PROGRAM_LIMITS = (
    (resource.RLIMIT_DATA, 256 << 20),
    (resource.RLIMIT_CPU, 20),
    (resource.RLIMIT_FSIZE, 0),
    (resource.RLIMIT_NOFILE, 1024),
    (resource.RLIMIT_CORE, 0),
)
#: Of what reads a file of a user's into values and tells little of it: a hostile one must not fill the node's memory.
READER_LIMITS = (
    (resource.RLIMIT_DATA, 640 << 20),
    (resource.RLIMIT_CPU, 20),
    (resource.RLIMIT_FSIZE, 0),
    (resource.RLIMIT_NOFILE, 32),
    (resource.RLIMIT_CORE, 0),
    (resource.RLIMIT_NPROC, 0),
)

_libc = ctypes.CDLL(None, use_errno=True)


def give_up_rights(
    uid: int, gid: int, groups: Sequence[int], limits: Sequence[tuple[int, int]], *, traces: bool = False
) -> None:
    """From now on this process is the user's, and can become nobody else. limits: of ``resource``. Raises OSError.

    uid 0 keeps one capability, to look at processes of its own that have more: a container's root is one. So does
    whoever ``traces``, through an execve too, where the kernel (Yama) does not let a user trace his own processes.
    """
    kept = (_CAP_SYS_PTRACE,) if uid == 0 or (traces and _is_tracing_restricted()) else ()
    for kind, most in limits:
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
    drop_from_bounding_set(kept)
    if uid != os.geteuid() or os.geteuid() == 0:
        try:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
        except PermissionError:  # root of a container that has no right to: it can only be root's own helper
            if uid != 0:
                raise
        _libc.prctl(_PR_SET_KEEPCAPS, int(bool(kept)), 0, 0, 0)
        os.setresuid(uid, uid, uid)
        drop_capabilities(kept, inherited=traces)
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot refuse new privileges")
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # so that his debugger cannot make it say what it likes


def become_reader(words: Sequence[str]) -> Sequence[str]:
    """Gives up all rights but a user's, and room and time beyond ``READER_LIMITS``. Raises OSError.

    The words: uid, gid, groups, and the reader's own, which are returned.
    """
    groups = [int(group) for group in words[2].split(",") if group]
    os.nice(10)
    give_up_rights(int(words[0]), int(words[1]), groups, READER_LIMITS)
    return words[3:]


def name_process(name: str) -> None:
    """What ``ps`` calls this process, in 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _is_tracing_restricted() -> bool:
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", "rb") as file:
            return file.read().strip() != b"0"
    except OSError:
        return False


def drop_from_bounding_set(kept: Sequence[int]) -> None:
    """No program that is started from now on gets another capability than these. Without the right to nothing is done:
    then the permitted set, which is cut as well, is what binds.
    """
    for capability in set(range(64)).difference(kept):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def effective_capabilities() -> int:
    """Bit by bit those of this thread. Raises OSError."""
    low, _, _, high, _, _ = _capability_sets()
    return low | high << 32


def _capability_sets() -> tuple[int, ...]:
    """Effective, permitted and inheritable, low words and then high ones. Raises OSError."""
    sets = ctypes.create_string_buffer(24)
    if _libc.capget(_CAPABILITY_HEADER, sets) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be read")
    return tuple(map(int, Struct("=6I").unpack(sets.raw)))


def drop_capabilities(kept: Sequence[int], *, inherited: bool = False) -> None:
    """Keeps these capabilities (of those that are there), permitted and effective. Raises OSError.

    inherited: through an execve as well, which otherwise ends them for every user but root.
    """
    _, low, _, _, high, _ = _capability_sets()
    bits = (low | high << 32) & sum(1 << capability for capability in kept)
    low, high = bits & 0xFFFFFFFF, bits >> 32
    heirs = (low, high) if inherited else (0, 0)
    if _libc.capset(_CAPABILITY_HEADER, Struct("=6I").pack(low, low, heirs[0], high, high, heirs[1])) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")
    for capability in kept if inherited else ():
        _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability, 0, 0)
