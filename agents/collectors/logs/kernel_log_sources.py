"""Where kernel lines come from: /dev/kmsg, a file that a logger writes, or journald. Lines with times, nothing judged.

None of them blocks, and none reads more than it was asked for: what is left waits at its source, and what the source
loses meanwhile is counted.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ....telemetry.ring_layout import cut_text
from ....telemetry.trust import Trust
from ..base.collector import Timestamps
from .followed_file import MAX_LINE_BYTES, FollowedFile
from .log_clock import LogClock

KMSG = "/dev/kmsg"
#: Where loggers put kernel lines, by distribution.
LOG_FILES = ("/var/log/kern.log", "/var/log/messages", "/var/log/syslog")
#: The kernel's records are 8 KiB at most, with what it escapes.
_RECORD_BYTES = 16 << 10
_FILE_LOOK_BACK_BYTES = 4 << 20
_FILE_READ_BYTES = 8 << 20
_PIPE_READ_BYTES = 256 << 10
_MAX_JSON_BYTES = 1 << 20
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
#: Crashes, with the file that the address is in; programs by their path; mounts, sockets and audit by names.
_QUOTES = re.compile(
    r"segfault at|\btraps?: |general protection|trap (?:invalid|divide|stack|int3)|executable stack"
    r"|\berror [0-9a-f]+ in |process '|\baudit(?:\(|: )|\bcomm=|\bexe=|Comm: |unhandled signal"
    r"|unexpected fatal signal"
)
#: What drivers begin their lines with, and what stands before it where it is theirs: some names of devices. Behind
#: anything else somebody quotes it: a mount option, a path, a control group.
_DRIVER = re.compile(r"NVRM: |\bS?Xid \(|\[Hardware Error\]|\bEDAC MC|\bmlx[45]_core |\bamdgpu |fallen off the bus")
_DEVICES = re.compile(r"(?:[\w.:\[\]{}#-]+ ?){0,3}")
_MOST_DEVICES = 80
_JOURNAL_AGAIN_NS = 30_000_000_000
_ANSWER_S = 5
_S = 1_000_000_000
#: Lines of the kernel that are older than journald.
_BOOT_US = 120_000_000


@dataclass(frozen=True, slots=True)
class KernelLine:
    """text: a kernel record's message, or the whole line of a file. moment: the record's own, or that of reading.

    is_continued: a further line of the same record: a user who gets a line's end into a name makes such.
    """

    text: str
    moment: Timestamps
    is_continued: bool = False

    @property
    def quotes_users(self) -> bool:
        """Whether a user may have chosen a part of its words: names of files and programs stand in such lines."""
        if self.is_continued or _QUOTES.search(self.text) is not None:
            return True
        driver = _DRIVER.search(self.text)
        before = "" if driver is None else self.text[: driver.start()]
        return len(before) > _MOST_DEVICES or _DEVICES.fullmatch(before) is None


@dataclass(slots=True)
class SourceCounts:
    """Running totals of what the source could not give."""

    lost_lines: int = 0
    lost_bytes: int = 0


class KernelLogSource(Protocol):
    """Made only if it can be read: making raises OSError or ValueError otherwise. trust: who could have written it."""

    name: str
    counts: SourceCounts
    trust: Trust

    def read(self, now: Timestamps, most_lines: int) -> Sequence[KernelLine]:
        """Lines that came since the last call, at most so many; never waits for more. Raises OSError."""

    def close(self) -> None:
        """Ends the source for good."""


class KmsgSource:
    """The kernel's own ring: a read is a record. Numbered, so what was overwritten before it was read is known."""

    def __init__(self, look_back_s: float, path: str = KMSG, open_fd: Callable[[str], int] | None = None) -> None:
        self.name = path
        self.trust = Trust.KERNEL
        self.counts = SourceCounts()
        self._look_back_ns = int(look_back_s * _S)
        self._begin_ns: int | None = None
        self._fd = (open_fd or _open_kmsg)(path)
        self._next_sequence: int | None = None
        self._clock = LogClock()
        #: When there was last nothing more to read.
        self._drained_ns: int | None = None

    def read(self, now: Timestamps, most_lines: int) -> list[KernelLine]:
        """Records of the kernel's ring, whose own times are corrected by ``LogClock``. Raises OSError."""
        if self._begin_ns is None:
            self._begin_ns = now.mono_ns - self._look_back_ns
        lines: list[KernelLine] = []
        drained_ns, self._drained_ns = self._drained_ns, None
        while len(lines) < most_lines:
            try:
                record = os.read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                self._drained_ns = now.mono_ns
                break
            except BrokenPipeError:
                continue  # overwritten before we came; the next read is the oldest that is left
            except OSError as error:
                if error.errno == errno.EINVAL:  # longer than our buffer, and skipped by the kernel
                    self.counts.lost_lines += 1
                    continue
                raise
            if not record:
                break
            parsed = parse_kmsg(record)
            if parsed is None:
                continue
            sequence, record_ns, texts = parsed
            if self._next_sequence is not None and sequence > self._next_sequence:
                self.counts.lost_lines += sequence - self._next_sequence
            self._next_sequence = sequence + 1
            if drained_ns is not None:
                self._clock.see(record_ns, drained_ns, now.mono_ns)
            mono_ns = self._clock.mono_ns(record_ns)
            if mono_ns >= self._begin_ns:
                moment = moment_of_mono(min(mono_ns, now.mono_ns), now)
                lines += [KernelLine(text, moment, is_continued=number > 0) for number, text in enumerate(texts)]
        return lines

    def close(self) -> None:
        """Closes /dev/kmsg."""
        os.close(self._fd)


class LogFileSource:
    """A file of syslog or of ``dmesg -w``. Lines keep their prefix, in which their time is."""

    def __init__(self, path: str, trust: Trust = Trust.USER) -> None:
        """trust: of what a logger writes any user may have said: it takes "kernel" lines over /dev/log, too."""
        self.name = path
        self.trust = trust
        self.counts = SourceCounts()
        self._file = FollowedFile(path, look_back_bytes=_FILE_LOOK_BACK_BYTES)

    def read(self, now: Timestamps, most_lines: int) -> list[KernelLine]:
        """Lines that a logger has appended; their time is that of reading. Raises OSError."""
        lines = self._file.read_lines(most_lines, _FILE_READ_BYTES)
        self.counts.lost_bytes = self._file.counts.lost_bytes
        return [KernelLine(line.decode("utf-8", "replace"), now) for line in lines]

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class JournalSource:
    """``journalctl -k -f -o json`` as a child. If it ends it is started again, behind the last line that it gave."""

    def __init__(self, look_back_s: float, program: str = "journalctl") -> None:
        found = shutil.which(program)
        if found is None:
            raise FileNotFoundError(2, "not installed", program)
        self.name = "journalctl"
        self.trust = Trust.KERNEL  # -k: by transport, which is journald's own word
        self.counts = SourceCounts()
        self._program = found
        self._since = f"--since=-{int(look_back_s)}s"
        self._cursor = ""
        self._half = b""
        self._said = ""
        self._again_ns = 0
        self._check_right()
        self._child = self._start()

    def read(self, now: Timestamps, most_lines: int) -> list[KernelLine]:
        """New records of journalctl as lines, at most so many. A journalctl that has ended is started again.

        Raises OSError if it has ended and says why.
        """
        lines: list[KernelLine] = []
        raw = self._half.split(b"\n")
        self._half = raw.pop()
        while True:
            taken = 0
            for document in raw:
                if len(lines) >= most_lines:
                    break
                taken += 1
                parsed = parse_journal(document, now)
                if parsed is None:
                    self._said = document[:200].decode("utf-8", "replace").strip() or self._said
                    continue
                self._cursor = parsed[0] or self._cursor
                lines.append(parsed[1])
            if taken < len(raw):
                self._half = b"\n".join([*raw[taken:], self._half])
                return lines
            chunk = self._read_pipe()
            if chunk is None and not lines:
                self._start_again(now)
            if not chunk:
                return lines
            raw = (self._half + chunk).split(b"\n")
            self._half = raw.pop()
            if len(self._half) > _MAX_JSON_BYTES:
                self.counts.lost_bytes += len(self._half)
                self._half = b""

    def close(self) -> None:
        """Kills journalctl and collects its exit status."""
        self._child.kill()
        self._child.communicate()

    def _check_right(self) -> None:
        """A user who may not read the journal is shown nothing, and waits for it forever."""
        command = [self._program, "-k", "-n", "1", "-o", "json", "-q", "--no-pager"]
        try:
            shown = subprocess.run(command, capture_output=True, timeout=_ANSWER_S, check=False, env=_environment())
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(110, f"no answer in {_ANSWER_S} s") from error
        if b"MESSAGE" not in shown.stdout:
            raise PermissionError(13, "it shows no kernel line: no journal, or no right to read it")

    def _start(self) -> subprocess.Popen[bytes]:
        begin = f"--after-cursor={self._cursor}" if self._cursor else self._since
        child = subprocess.Popen(
            [self._program, "-k", "-f", "-o", "json", "--no-tail", "--no-pager", "-q", begin],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # what is no JSON is what it complains of
            env=_environment(),
        )
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        return child

    def _read_pipe(self) -> bytes | None:
        """What is there; None if the child has ended."""
        assert self._child.stdout is not None
        try:
            return os.read(self._child.stdout.fileno(), _PIPE_READ_BYTES) or None
        except BlockingIOError:
            return b""

    def _start_again(self, now: Timestamps) -> None:
        if now.mono_ns < self._again_ns:
            return
        self.close()
        said = self._said or "without a word"
        self._again_ns = now.mono_ns + _JOURNAL_AGAIN_NS
        self._half = b""
        self._said = ""
        self._child = self._start()
        raise OSError(f"it ended: {said}")


def parse_kmsg(record: bytes) -> tuple[int, int, list[str]] | None:
    r"""(sequence number, ns since boot, lines) of a record ``6,1990,42835236510,-;text\n KEY=value`` of /dev/kmsg.

    None if it is no such record.
    """
    head, found, body = record.partition(b";")
    fields = head.split(b",")
    if not found or len(fields) < 3 or not (fields[1].isdigit() and fields[2].isdigit()):
        return None
    text = body.partition(b"\n")[0].decode("utf-8", "replace")
    text = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
    return int(fields[1][:19]), int(fields[2][:16]) * 1000, text.splitlines()


def parse_journal(document: bytes, now: Timestamps) -> tuple[str, KernelLine] | None:
    """(cursor, line) of a JSON record of journald; None if it is none.

    The line's moment is the record's own, ``now`` where it has none. Bytes that are no UTF-8 come as numbers.
    """
    try:
        record = json.loads(document)
        message = record["MESSAGE"]
        if isinstance(message, list):
            message = bytes(message).decode("utf-8", "replace")
        # When it was received is told by a better clock, but the lines of the boot are received late.
        mono_us = record.get("_SOURCE_MONOTONIC_TIMESTAMP")
        received_us = record.get("__MONOTONIC_TIMESTAMP")
        if mono_us is None or (received_us is not None and int(mono_us) > _BOOT_US):
            mono_us = received_us or mono_us
        wall_us = record.get("__REALTIME_TIMESTAMP")
        moment = now
        if mono_us is not None:
            moment = moment_of_mono(min(int(mono_us) * 1000, now.mono_ns), now)
        elif wall_us is not None:
            wall_ns = min(int(wall_us) * 1000, now.wall_ns)
            moment = Timestamps(wall_ns=wall_ns, mono_ns=max(now.mono_ns - (now.wall_ns - wall_ns), 0))
        return str(record.get("__CURSOR", "")), KernelLine(cut_text(str(message), MAX_LINE_BYTES), moment)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def moment_of_mono(mono_ns: int, now: Timestamps) -> Timestamps:
    """A monotonic time of this node with the wall clock's time at that moment."""
    return Timestamps(wall_ns=now.wall_ns - (now.mono_ns - mono_ns), mono_ns=mono_ns)


def _environment() -> dict[str, str]:
    return {"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath)}


def _open_kmsg(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
