"""The last minutes of the node's kernel log, for an incident: read anew where it can be read.

Runs in a thread that may block. From /dev/kmsg, else journalctl, else the file that a logger writes; times come first
in each line, as loggers write them. Bounded: of a flood the end is kept, and the first line says so.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

from ...telemetry.ring_layout import cut_text

KMSG = "/dev/kmsg"
SLICE_BYTES = 2 << 20
#: Where loggers put kernel lines; in the others they stand between those of everybody.
LOG_FILES = ("/var/log/kern.log", "/var/log/messages", "/var/log/syslog")
_KERNEL_ONLY = frozenset({"/var/log/kern.log"})
_LINE_BYTES = 4096
_RECORD_BYTES = 16 << 10
_JOURNAL_S = 10.0
_JOURNAL_LINES = 20_000
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
_ISO = re.compile(rb"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")
_SYSLOG = re.compile(rb"([A-Z][a-z]{2}) ([ \d]\d) (\d\d:\d\d:\d\d) ")
_SINCE_BOOT = re.compile(rb"(?:<\d{1,3}>)?\[ {0,11}(\d{1,12})\.(\d{6})\]")
_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")
_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLogSlice:
    """source: where it was read, "" if nowhere; then ``problem`` says why, in one line."""

    source: str
    text: bytes
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Clocks:
    """One moment on both clocks, in ns."""

    wall_ns: int
    mono_ns: int

    def wall_of(self, mono_ns: int) -> int:
        return self.wall_ns - (self.mono_ns - mono_ns)


class _Tail:
    """The last lines, up to so many bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self.left_out = 0

    def add(self, line: bytes) -> None:
        line = cut_text(line.decode("latin-1"), _LINE_BYTES).encode("latin-1").replace(b"\0", b"")
        self._lines.append(line)
        self._bytes += len(line) + 1
        while self._bytes > self._limit_bytes and len(self._lines) > 1:
            self._bytes -= len(self._lines.popleft()) + 1
            self.left_out += 1

    def text(self, source: str) -> bytes:
        left_out = f"; {self.left_out} earlier lines left out" if self.left_out else ""
        return b"".join(line + b"\n" for line in (f"# kernel log from {source}{left_out}".encode(), *self._lines))


def read_kernel_log(
    look_back_s: float,
    path: str = "",
    *,
    limit_bytes: int = SLICE_BYTES,
    wall_ns: Callable[[], int] = time.time_ns,
    sources: tuple[str, ...] = (KMSG, "journalctl", *LOG_FILES),
) -> KernelLogSlice:
    """What the kernel has said in the last ``look_back_s``, at most ``limit_bytes`` of it.

    path: of the configuration, and then the only one; else the first of ``sources`` that can be read. Never raises for
    a source that cannot be read.
    """
    now = _Clocks(wall_ns(), time.monotonic_ns())
    begin_ns = now.wall_ns - int(look_back_s * _S)
    problems = []
    for source in (path,) if path else sources:
        tail = _Tail(limit_bytes)
        try:
            for line in _lines_of(source, begin_ns, now, limit_bytes, kernel_only=source == path or None):
                tail.add(line)
        except OSError as error:
            problems.append(f"{source}: {error.strerror or error}")
            continue
        return KernelLogSlice(source=source, text=tail.text(source))
    return KernelLogSlice(source="", text=b"", problem="; ".join(problems))


def _lines_of(
    source: str, begin_ns: int, now: _Clocks, limit_bytes: int, *, kernel_only: bool | None
) -> Iterable[bytes]:
    """kernel_only: the file holds kernel lines and no others; None: by its name. Raises OSError."""
    if source == KMSG:
        return _read_kmsg(source, begin_ns, now)
    if source == "journalctl":
        return _read_journal(begin_ns)
    only = source in _KERNEL_ONLY if kernel_only is None else kernel_only
    return _read_file(source, begin_ns, now, limit_bytes, only)


def _read_kmsg(path: str, begin_ns: int, now: _Clocks) -> Iterator[bytes]:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while True:
            try:
                record = os.read(fd, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # overwritten while we read; the next read is the oldest that is left
            if not record:
                return
            yield from _lines_of_record(record, begin_ns, now)
    finally:
        os.close(fd)


def _lines_of_record(record: bytes, begin_ns: int, now: _Clocks) -> Iterator[bytes]:
    """``6,1990,42835236510,-;text\\n KEY=value`` as lines with their time."""
    head, found, body = record.partition(b";")
    fields = head.split(b",")
    if not found or len(fields) < 3 or not fields[2].isdigit():
        return
    # The kernel's log clock runs a little apart from the monotonic clock; nothing is of the future.
    time_ns = min(now.wall_of(int(fields[2][:16]) * 1000), now.wall_ns)
    if time_ns < begin_ns:
        return
    text = _ESCAPED.sub(lambda match: bytes((int(match[1], 16),)), body.partition(b"\n")[0])
    prefix = f"{_iso(time_ns)} {os.uname().nodename} kernel: ".encode()
    for line in text.splitlines():
        yield prefix + line


def _read_journal(begin_ns: int) -> Iterator[bytes]:
    program = shutil.which("journalctl")
    if program is None:
        raise FileNotFoundError(2, "not installed", "journalctl")
    command = [program, "-k", "-q", "--no-pager", "-o", "short-iso-precise", f"--since=@{begin_ns // _S}"]
    environment = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.environ.get("PATH", os.defpath)}
    try:
        told = subprocess.run(
            [*command, "-n", str(_JOURNAL_LINES)], capture_output=True, timeout=_JOURNAL_S, check=False, env=environment
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(110, f"no answer in {_JOURNAL_S:.0f} s") from error
    if told.returncode != 0:
        raise OSError(told.stderr.decode("utf-8", "replace").strip()[:200] or f"exit status {told.returncode}")
    yield from told.stdout.splitlines()


def _read_file(path: str, begin_ns: int, now: _Clocks, limit_bytes: int, kernel_only: bool) -> Iterator[bytes]:
    """The end of a logger's file. A line without a time that can be read belongs to the one before it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        size = os.fstat(fd).st_size
        begin = max(0, size - limit_bytes)
        content = os.pread(fd, limit_bytes, begin)
    finally:
        os.close(fd)
    if begin:
        content = content.partition(b"\n")[2]
    is_inside = not begin
    for line in content.splitlines():
        time_ns = line_time_ns(line, now.wall_ns, now.mono_ns)
        is_inside = is_inside if time_ns is None else begin_ns <= time_ns
        if is_inside and (kernel_only or b" kernel:" in line[:128]):
            yield line


def line_time_ns(line: bytes, wall_ns: int, mono_ns: int) -> int | None:
    """Unix ns at which a line was written, by its prefix; None: it does not say, or in another way.

    Known are ISO 8601, syslog (local time, no year) and seconds since boot. wall_ns, mono_ns: now on both clocks.
    """
    found = _SINCE_BOOT.match(line)
    if found is not None:
        return wall_ns - (mono_ns - (int(found[1]) * _S + int(found[2]) * 1000))
    try:
        found = _ISO.match(line)
        if found is not None:
            fraction_ns = int((found[2] or b"").ljust(9, b"0"))
            zone = (found[3] or b"").decode().replace("Z", "+0000").replace(":", "")
            text = found[1].decode().replace(" ", "T")
            moment = _moment(text + zone, "%Y-%m-%dT%H:%M:%S" + ("%z" if zone else ""))
            return int(moment.timestamp()) * _S + fraction_ns
        found = _SYSLOG.match(line)
        if found is None or found[1] not in _MONTHS:
            return None
        year = datetime.fromtimestamp(wall_ns // _S, timezone.utc).astimezone().year
        moment = _syslog_moment(year, found)
        if moment.timestamp() * _S > wall_ns + 86_400 * _S:  # of December, read in January
            moment = _syslog_moment(year - 1, found)
        return int(moment.timestamp()) * _S
    except (ValueError, OverflowError, OSError):
        return None


def _syslog_moment(year: int, found: re.Match[bytes]) -> datetime:
    text = f"{year} {_MONTHS.index(found[1]) + 1} {int(found[2])} {found[3].decode()}"
    return _moment(text, "%Y %m %d %H:%M:%S")


def _moment(text: str, form: str) -> datetime:
    """Without a zone it is local time. Raises ValueError."""
    return datetime.strptime(text, form).astimezone()


def _iso(time_ns: int) -> str:
    moment = datetime.fromtimestamp(time_ns // _S, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns % _S // 1000:06d}+00:00"
