"""Runs families of checks, each probe in a process of its own: whatever hangs, the command ends in time.

A probe's process is told on stdin what to do and writes a JSON line per finding. One that is late is killed and left:
where the kernel does not let it go, nobody waits for it. What it had found, and what it was asking, is told.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ...diagnosis.health_checks.outcome import CheckStatus
from .check_setup import CheckMode, Setup
from .child_messages import Begins, ChildMessage, Done, read_message, write_setup
from .finding import CheckFinding, Family

#: More findings of one probe are counted.
MOST_FINDINGS = 500
_MOST_LINE_BYTES = 64 << 10
_READ_BYTES = 64 << 10
#: What is left of the whole for starting, ending and printing.
_SPARE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """``module``: beside this one, with ``check(setup, tell)``. One process looks for all of ``families``."""

    module: str
    families: tuple[Family, ...]
    #: Seconds that it may take.
    limits_s: Mapping[CheckMode, float]


def _limits(preflight: float, prolog: float = 0.0, epilog: float = 0.0) -> Mapping[CheckMode, float]:
    given = ((CheckMode.PREFLIGHT, preflight), (CheckMode.PROLOG, prolog), (CheckMode.EPILOG, epilog))
    return {mode: limit_s for mode, limit_s in given if limit_s > 0}


#: A mode without a limit leaves the probe out. A first look at GPUs without persistence takes seconds.
PROBES = (
    Probe(module="gpu", families=(Family.GPU, Family.NVLINK), limits_s=_limits(30, 8, 8)),
    Probe(module="compute", families=(Family.COMPUTE,), limits_s=_limits(50)),
    Probe(module="network", families=(Family.NETWORK,), limits_s=_limits(20, 6, 6)),
    Probe(module="storage", families=(Family.STORAGE,), limits_s=_limits(20, 8, 8)),
    Probe(module="host", families=(Family.MEMORY, Family.HOST), limits_s=_limits(15, 6, 6)),
    Probe(module="services", families=(Family.SERVICES,), limits_s=_limits(15, 6)),
    Probe(module="versions", families=(Family.VERSIONS,), limits_s=_limits(15, 6)),
    Probe(module="site_probe", families=(Family.SITE,), limits_s=_limits(50, 8, 8)),
    Probe(module="kernel_log_check", families=(Family.KERNEL_LOG,), limits_s=_limits(30, 8, 8)),
)
#: The whole command, by mode.
WHOLE_S: Mapping[CheckMode, float] = {CheckMode.PREFLIGHT: 60.0, CheckMode.PROLOG: 10.0, CheckMode.EPILOG: 10.0}


@dataclass(slots=True)
class _Running:
    probe: Probe
    child: subprocess.Popen[bytes]
    families: tuple[Family, ...]
    began_s: float
    until_s: float
    half: bytes = b""
    asked: str = "it was started"
    stuck: CheckStatus = CheckStatus.UNKNOWN
    #: A child that has said so has told all that it had.
    done: bool = False
    findings: list[CheckFinding] = field(default_factory=list)
    left_out: int = 0

    @property
    def fd(self) -> int:
        assert self.child.stdout is not None
        return self.child.stdout.fileno()


def run_probes(setup: Setup, whole_s: float) -> list[CheckFinding]:
    """Runs all chosen probes at once, each in a process of its own, and returns what they found within ``whole_s``.

    A probe that hangs is left, which is a finding.
    """
    until_s = time.monotonic() + whole_s - _SPARE_S
    running = [_start(probe, setup, until_s) for probe in PROBES if _is_chosen(probe, setup)]
    with selectors.DefaultSelector() as waiting:
        for each in running:
            os.set_blocking(each.fd, False)
            waiting.register(each.fd, selectors.EVENT_READ, each)
        while waiting.get_map():
            next_s = min(key.data.until_s for key in waiting.get_map().values())
            for key, _ in waiting.select(max(0.0, next_s - time.monotonic())):
                if not _read(key.data):
                    waiting.unregister(key.fd)
            for key in [k for k in waiting.get_map().values() if k.data.until_s <= time.monotonic()]:
                waiting.unregister(key.fd)
    return [finding for each in running for finding in _end(each)]


def _is_chosen(probe: Probe, setup: Setup) -> bool:
    return setup.mode in probe.limits_s and not setup.families.isdisjoint(probe.families)


def _start(probe: Probe, setup: Setup, until_s: float) -> _Running:
    began_s = time.monotonic()
    limit_s = max(0.5, min(probe.limits_s[setup.mode], until_s - began_s))
    child = subprocess.Popen(
        [sys.executable, "-m", "whichrank.commands.check.child", probe.module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",  # the caller may stand on a mount that is dead
        start_new_session=True,  # it and what it starts are ended together
    )
    assert child.stdin is not None
    try:
        child.stdin.write(write_setup(replace(setup, limit_s=limit_s)))
        child.stdin.close()
    except OSError:
        pass  # it has ended; that is told by its status
    families = tuple(family for family in probe.families if family in setup.families)
    return _Running(
        probe=probe, child=child, families=families, began_s=began_s, until_s=min(began_s + limit_s, until_s)
    )


def _read(running: _Running) -> bool:
    """False: it is through, or has ended."""
    try:
        chunk = os.read(running.fd, _READ_BYTES)
    except BlockingIOError:
        return True
    lines = (running.half + chunk).split(b"\n")
    running.half = lines.pop()[:_MOST_LINE_BYTES]
    for line in lines:
        try:
            _take(running, read_message(line))
        except (ValueError, KeyError, TypeError):
            running.left_out += 1  # what a library wrote there by itself
    return bool(chunk) and not running.done


def _take(running: _Running, message: ChildMessage) -> None:
    if isinstance(message, Begins):
        running.asked, running.stuck = message.what, message.stuck
    elif isinstance(message, Done):
        running.done = True
    elif len(running.findings) < MOST_FINDINGS:
        running.findings.append(message)
    else:
        running.left_out += 1


def _end(running: _Running) -> Sequence[CheckFinding]:
    child = running.child
    if not running.done and child.poll() is None and time.monotonic() < running.until_s:
        # Its end of the pipe is closed: it is ending.
        with suppress(subprocess.TimeoutExpired):
            child.wait(0.2)
    status = child.poll()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    if not running.done:
        took_s = time.monotonic() - running.began_s
        if status is None:
            why = f"no answer within {min(took_s, running.until_s - running.began_s):.1f} s while {running.asked}"
            how_bad, remedy = running.stuck, "look for processes in state D (ps -eo pid,stat,wchan:32,args)"
        else:
            why = f"its process ended with {status} while {running.asked}"
            how_bad, remedy = max(running.stuck, CheckStatus.UNKNOWN, key=_is_worse), "run the check again by hand"
        for family in running.families:
            running.findings.append(
                CheckFinding(family=family, check="answer", status=how_bad, reason=why, remedy=remedy)
            )
    if running.left_out and len(running.findings) >= MOST_FINDINGS:
        running.findings.append(
            CheckFinding(
                family=running.families[0],
                check="answer",
                status=CheckStatus.WARN,
                reason=f"{running.left_out} more findings are left out",
            )
        )
    return [finding for finding in running.findings if finding.family in running.families]


def _is_worse(status: CheckStatus) -> int:
    return (CheckStatus.OK, CheckStatus.UNKNOWN, CheckStatus.WARN, CheckStatus.CRITICAL).index(status)
