"""What Kafka has not taken, on disk: outlives the agent, stays under its limit, gives back in the order of numbers.

One stream of segment files per topic and priority, in the frame format of the embedded log (``transport/segments``:
checksums, torn ends, damage that is skipped); the number of a message is the frame's position. Over the limit the
oldest segment of the lowest priority goes. Where several owners have messages here, what one has beyond his share lies
in streams of its own and goes first: nobody's flood takes the others' room. The ledger, one small JSON file, holds per
topic up to which number all is settled, and every drop that was ever counted; it is written before a segment is given
up, so that a kill in between counts it once. Frames go to the page cache, which survives kill -9; they are not fsynced.

Owned by one thread at a time. Another process in the same folder is refused by a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...telemetry.whole_numbers import whole_number
from ...transport.bus import Message
from ...transport.segments import FORMAT_VERSION, HEADER, MAGIC, SegmentReader, encode_frame
from ..base.priority import Priority
from .spool_stream import SpoolSegment, SpoolStream, write_whole

LOCK_NAME = "lock"
LEDGER_NAME = "ledger.json"
#: The limit is kept by whole segments: so many make it up, none larger than this.
_SEGMENTS_WITHIN_LIMIT = 64
_LARGEST_SEGMENT_BYTES = 4 << 20
_NAME = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)\.(?P<priority>[0-9])(?P<beyond>x?)\.(?P<first>[0-9a-f]{16})\.spool")
_SPOOL_ID = b"whichrank-spool\0"
#: A ledger with a larger number of a message is damaged.
_MOST_NUMBER = 1 << 62
#: Header of a frame: the uid of the owner of the job that it is of. The agent's own messages have none.
#: OWN: the agent's own records; OTHERS: losses of owners beyond the _MOST_OWNERS who have lost most.
_OWNER, OWN, OTHERS, _MOST_OWNERS = "owner", -1, -2, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message on its way to Kafka. ``number`` grows with every message of this agent and spool, over restarts."""

    number: int
    priority: Priority
    topic: str
    key: str
    value: bytes
    stamp_ns: int  # Unix time at which it was taken
    owner: int = OWN  # uid of whose job it is

    @property
    def size(self) -> int:
        """About how many bytes of memory the message takes."""
        return len(self.value) + len(self.key) + 300


def _private(path: str, flags: int) -> int:
    """Opens a file that its user alone may read, whatever the umask is."""
    return os.open(path, flags, 0o600)


class Spool:
    def __init__(self, directory: Path, limit_bytes: int, report: Callable[[str], None]) -> None:
        """Opens what an earlier agent left. Raises OSError (no rights, no room, in use by another process).

        report: takes one line per damaged place or refusal.
        """
        self.directory = directory
        self._limit_bytes = limit_bytes
        self._segment_bytes = min(max(limit_bytes // _SEGMENTS_WITHIN_LIMIT, 1), _LARGEST_SEGMENT_BYTES)
        self._report = report
        self._said: set[tuple[str, int]] = set()
        self._streams: dict[tuple[str, Priority, bool], SpoolStream] = {}
        #: Bytes on disk by owner.
        self._used_by: Counter[int] = Counter()
        #: Per topic: every message up to this number has been handed over; reading goes on behind it.
        self._handed: dict[str, int] = {}
        self._settled: dict[str, int] = {}
        #: Drops by priority and reason, over all restarts.
        self.dropped: Counter[tuple[Priority, str]] = Counter()
        #: Of these, what was given up for want of room here, by owner.
        self.dropped_of: Counter[int] = Counter()
        self._ledger_written = ""
        #: Places where frames were damaged or half-written.
        self.damaged = 0
        self.written = 0
        self._lock_fd = self._take(directory)
        try:
            giving_up = self._read_ledger()
            self._adopt(giving_up)
        except BaseException:
            os.close(self._lock_fd)
            raise

    @property
    def bytes(self) -> int:
        """Bytes of all segments on disk."""
        return sum(segment.size for _, segment in self._segments())

    @property
    def waiting(self) -> int:
        """How many messages have not been handed over."""
        return sum(self._unread(stream, segment) for stream, segment in self._segments())

    @property
    def oldest_ns(self) -> int:
        """Unix time of the oldest segment's first message; 0 = empty."""
        return min((segment.oldest_ns for _, segment in self._segments() if segment.numbers), default=0)

    @property
    def last_number(self) -> int:
        """The highest message number that is known here, handed over or not; 0: none."""
        numbers = [stream.last_number for stream in self._streams.values()]
        return max([*numbers, *self._settled.values(), *self._handed.values()], default=0)

    def topics(self) -> list[str]:
        """The topics that have segments here, sorted."""
        return sorted({topic for topic, _, _ in self._streams})

    # --- writing ----------------------------------------------------------------------------------------------------
    def append(self, message: Outgoing) -> None:
        """Keep a message; its number is beyond those of its topic and priority. Raises OSError: the disk refuses it.

        What has to go to stay under the limit goes, counted in ``dropped``; it may be this message.
        """
        frame = encode_frame(
            Message(
                topic=message.topic,
                key=message.key,
                value=message.value,
                position=message.number,
                stamp_ns=message.stamp_ns,
                headers={} if message.owner == OWN else {_OWNER: b"%d" % message.owner},
            )
        )
        stream = self._stream(message.topic, message.priority, self._is_beyond(message.owner, len(frame)))
        if stream.fd < 0 or stream.segments[-1].size + len(frame) > self._segment_bytes:
            self._begin_segment(stream, message)
        segment = stream.segments[-1]
        write_whole(stream, segment, frame)
        segment.note(message.number, message.owner, len(frame), message.stamp_ns)
        self._used_by[message.owner] += len(frame)
        self.written += 1
        while self.bytes > self._limit_bytes and self._give_up_oldest():
            pass

    def _stream(self, topic: str, priority: Priority, is_beyond: bool) -> SpoolStream:
        stream = SpoolStream(topic, priority, is_beyond=is_beyond)
        return self._streams.setdefault((topic, priority, is_beyond), stream)

    def _is_beyond(self, owner: int, more_bytes: int = 0) -> bool:
        """Whether an owner has more than his share. Who is alone has all; of several, each leaves room for one more."""
        if owner == OWN:
            return False
        owners = len({owner, *self._used_by} - {OWN})
        return owners > 1 and self._used_by[owner] + more_bytes > self._limit_bytes // (owners + 1)

    def _begin_segment(self, stream: SpoolStream, message: Outgoing) -> None:
        stream.stop_writing()
        while stream.segments and not stream.segments[-1].numbers:  # the disk refused its first frame
            self._unlink(stream.segments[-1].path)
            self._forget(stream, stream.segments[-1])
        beyond = "x" if stream.is_beyond else ""
        path = self.directory / f"{message.topic}.{message.priority:d}{beyond}.{message.number:016x}.spool"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(path, flags, 0o600)
        segment = SpoolSegment(path=path)
        stream.fd = fd
        stream.segments.append(segment)
        try:
            write_whole(stream, segment, HEADER.pack(MAGIC, FORMAT_VERSION, 0, _SPOOL_ID))
        except OSError:
            stream.remove(segment)
            with contextlib.suppress(OSError):
                path.unlink()
            raise

    def _give_up_oldest(self) -> bool:
        """Drop the oldest segment of the lowest priority, of owners beyond their share first; False: there is none."""
        beyond = {owner for owner in self._used_by if self._is_beyond(owner)}
        candidates = [
            (
                not (stream.is_beyond or _is_mostly_of(beyond, segment)),
                -stream.priority,
                not stream.is_beyond,  # in another one's segments may lie what the others have
                segment.oldest_ns,
                segment.path,
            )
            for stream, segment in self._segments()
        ]
        if not candidates:
            return False
        lowest = min(candidates)
        stream, segment = next((st, se) for st, se in self._segments() if se.path == lowest[-1])
        unread = self._unread(stream, segment)
        self.dropped[stream.priority, "spool_full"] += unread
        self.dropped_of.update(segment.owners[len(segment.owners) - unread :])
        for owner, count in self.dropped_of.most_common()[_MOST_OWNERS:]:
            del self.dropped_of[owner]
            self.dropped_of[OTHERS] += count
        self._forget(stream, segment)
        self.write_ledger(giving_up=segment.path.name)
        self._unlink(segment.path)
        return True

    def _forget(self, stream: SpoolStream, segment: SpoolSegment) -> None:
        stream.remove(segment)
        self._used_by -= segment.used_by  # keeps what is above zero

    def _unread(self, stream: SpoolStream, segment: SpoolSegment) -> int:
        return len(segment.numbers) - bisect_right(segment.numbers, self._handed.get(stream.topic, 0))

    def _segments(self) -> Iterator[tuple[SpoolStream, SpoolSegment]]:
        for stream in self._streams.values():
            for segment in stream.segments:
                yield stream, segment

    # --- reading ----------------------------------------------------------------------------------------------------
    def next(self, topic: str) -> Outgoing | None:
        """The message of a topic with the lowest number beyond what was handed over, None without one.

        It stays the next until ``hand_over``.
        """
        after = self._handed.get(topic, 0)
        first: Message | None = None
        priority = Priority.EVIDENCE
        for stream in self._streams.values():
            if stream.topic != topic:
                continue
            message = stream.peek(after, self._say_damage)
            if message is not None and (first is None or message.position < first.position):
                first, priority = message, stream.priority
        if first is None:
            return None
        return Outgoing(
            number=first.position,
            priority=priority,
            topic=topic,
            key=first.key,
            value=first.value,
            stamp_ns=first.stamp_ns,
            owner=_owner_of(first),
        )

    def handed(self, topic: str) -> int:
        """The number up to which everything of a topic has been handed over; 0: nothing."""
        return self._handed.get(topic, 0)

    def hand_over(self, topic: str, number: int) -> None:
        """Notes that somebody has the topic's messages up to ``number``: ``next`` gives later ones."""
        self._handed[topic] = max(self._handed.get(topic, 0), number)

    def settle(self, topic: str, number: int) -> None:
        """Notes that the topic's messages up to ``number`` are answered for good.

        Segments that end there are deleted.
        """
        if number <= self._settled.get(topic, 0):
            return
        self._settled[topic] = number
        self.hand_over(topic, number)
        for stream in self._streams.values():
            while stream.topic == topic and stream.segments:
                segment = stream.segments[0]
                if segment.numbers and segment.numbers[-1] > number:
                    break
                self._forget(stream, segment)
                self._unlink(segment.path)

    # --- the ledger ---------------------------------------------------------------------------------------------------
    def write_ledger(self, giving_up: str = "") -> None:
        """Writes what is settled and dropped into a file, if that has changed; a failure is ignored, tried next time.

        giving_up: name of the segment file that is about to be deleted, "" none.
        """
        content = json.dumps(
            {
                "version": 1,
                "settled": self._settled,
                "dropped": [[int(p), reason, count] for (p, reason), count in sorted(self.dropped.items())],
                "dropped_of": sorted(self.dropped_of.items()),
                "giving_up": giving_up,
            }
        )
        if content == self._ledger_written:
            return
        partial = self.directory / f".{LEDGER_NAME}.partial"
        try:
            with open(partial, "w", opener=_private) as file:
                file.write(content)
            partial.replace(self.directory / LEDGER_NAME)
            self._ledger_written = content
        except OSError as error:
            self._say(str(partial), 0, f"not written: {error.strerror or error}; after a kill some is sent again")

    def _read_ledger(self) -> str:
        """Name of the segment that was being given up."""
        path = self.directory / LEDGER_NAME
        try:
            content: Any = json.loads(path.read_text())
            self._settled = {str(topic): int(number) for topic, number in content["settled"].items()}
            self.dropped = Counter({(Priority(p), str(reason)): int(n) for p, reason, n in content["dropped"]})
            self.dropped_of = Counter({int(owner): int(n) for owner, n in content.get("dropped_of", ())})
            giving_up = str(content["giving_up"])
            if not all(0 <= number < _MOST_NUMBER for number in self._settled.values()):
                raise ValueError("a number of a message that no message has")
        except FileNotFoundError:
            return ""
        except (OSError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            self._say(str(path), 0, f"cannot be read ({error}); some may be sent again, earlier drops are not counted")
            self._settled, self.dropped = {}, Counter()
            return ""
        self._handed = dict(self._settled)
        return giving_up

    # --- opening and closing ------------------------------------------------------------------------------------------
    @staticmethod
    def _take(directory: Path) -> int:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise OSError(error.errno, "another process keeps its spool here", str(directory)) from None
        return fd

    def _adopt(self, giving_up: str) -> None:
        """Segments of earlier agents, read through once: what is in them, and what is damaged."""
        found: list[tuple[int, re.Match[str], Path]] = []
        for entry in os.scandir(self.directory):
            match = _NAME.fullmatch(entry.name)
            if entry.name == giving_up:  # counted already, killed before it was gone
                self._unlink(Path(entry.path))
            elif match is not None and int(match["priority"]) in list(Priority):
                found.append((int(match["first"], 16), match, Path(entry.path)))
        for _, match, path in sorted(found, key=lambda item: item[0]):
            segment = SpoolSegment(path=path, size=path.stat().st_size)
            try:
                reader = SegmentReader(path, self._say_damage)
            except OSError as error:
                self._say_damage(str(path), 0, f"cannot be opened: {error.strerror or error}")
                continue
            while messages := reader.read(256, is_last=True):
                for message in messages:
                    size = len(message.value) + len(message.key) + HEADER.size
                    segment.note(message.position, _owner_of(message), size, message.stamp_ns)
            reader.close()
            if not segment.numbers or segment.numbers[-1] <= self._settled.get(match["topic"], 0):
                self._unlink(path)
            else:
                stream = self._stream(match["topic"], Priority(int(match["priority"])), bool(match["beyond"]))
                stream.segments.append(segment)
                self._used_by += segment.used_by

    def close(self) -> None:
        """Write the ledger and let go of the folder."""
        if self._lock_fd < 0:
            return
        self.write_ledger()
        for stream in self._streams.values():
            stream.close()
        os.close(self._lock_fd)
        self._lock_fd = -1

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self._say(str(path), 0, f"cannot be removed: {error.strerror or error}")

    def _say_damage(self, path: str, offset: int, line: str) -> None:
        if (path, offset) not in self._said:
            self.damaged += 1
        self._say(path, offset, line)

    def _say(self, path: str, offset: int, line: str) -> None:
        if (path, offset) not in self._said:
            self._said.add((path, offset))
            self._report(f"{path}:{offset}: {line}")


def _owner_of(message: Message) -> int:
    said = message.headers.get(_OWNER, b"")
    owner = whole_number(said.decode("ascii", "replace"))
    return OWN if owner is None else owner


def _is_mostly_of(owners: set[int], segment: SpoolSegment) -> bool:
    return 2 * sum(segment.used_by[owner] for owner in owners) > segment.used_by.total()
