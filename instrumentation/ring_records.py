"""The rare writes of a ring: definitions, group rows, heartbeat, crash area. Shared by the Python and the C writer.

Whoever inherits provides the mapping (``_bytes``, ``_words``) and ``append_event``; both writers therefore produce the
same bytes. Runs in the thread that calls; definitions are appended under a lock. Never raises for what does not fit:
it cuts texts and counts what it left out.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..telemetry import ring_layout as layout
from ..telemetry.vocabulary import EventKind
from .ring_creation import RingGeometry

#: Characters of a file's or function's name that a call site keeps; in JSON one may take six bytes.
_LONGEST_NAME = 200
_CALLS_MASK = layout.CALLS - 1
_LONGEST_CALL_SITE = 12 * _LONGEST_NAME + 128

Frame = tuple[str, int, str]
"""File, line, function; lists of frames have the innermost last."""


class RingRecords:
    """Cold half of a ring writer. Hot half: RingWriter (Python) or _recorder.Recorder (C)."""

    path: Path
    geometry: RingGeometry
    #: Groups that found a row, and groups that did not and are therefore blind.
    groups_defined: int
    groups_blind: int
    _bytes: memoryview
    _words: memoryview
    _records_lock: threading.Lock
    _definitions_used: int
    _call_site_bytes: int
    _calls_word: int
    _exception_written: bool
    _exception_in_main: bool

    def _start_records(self, path: Path, geometry: RingGeometry) -> None:
        self.path = path
        self.geometry = geometry
        self._calls_word = geometry.crash_offset + layout.C_CALLS >> 3
        self.groups_defined = 0
        self.groups_blind = 0
        self._records_lock = threading.Lock()
        self._definitions_used = 0
        self._call_site_bytes = 0
        self._exception_written = False
        self._exception_in_main = False

    def append_event(
        self,
        kind: int,
        group: int = 0,
        seq: int = 0,
        value: int = 0,
        extra: int = 0,
    ) -> None:
        """Publish one event in the current phase and step, stamped now."""
        raise NotImplementedError

    def _open_group(self, group: int) -> None:
        """Prepare the hot half's counters for a new row."""
        raise NotImplementedError

    # --- definitions and groups -------------------------------------------------------------------------------------
    def define(self, kind: int, index: int, payload: dict[str, Any]) -> bool:
        """Append one JSON entry; False where the area is full (the entry is left out whole)."""
        text = json.dumps(payload, separators=(",", ":"), default=str).encode()
        size = layout.DEFINITION_HEAD.size + len(text)
        padded = (size + 7) // 8 * 8
        with self._records_lock:
            used = self._definitions_used
            if used + padded > self.geometry.definitions_bytes:
                return False
            begin = self.geometry.definitions_offset + used
            head = layout.DEFINITION_HEAD.pack(len(text), kind, index & 0xFFFF)
            self._bytes[begin : begin + padded] = (head + text).ljust(padded, b"\0")
            self._definitions_used = used + padded
            self._words[layout.H_DEFINITIONS_USED >> 3] = self._definitions_used
        return True

    def define_call_site(self, number: int, payload: dict[str, Any]) -> bool:
        """Defines a line that issues operations; False where the room for such is used up.

        A lock is not needed: under the GIL two threads may at worst define one line twice.
        """
        before = self._definitions_used
        if self._call_site_bytes >= layout.CALL_SITE_BYTES - _LONGEST_CALL_SITE:
            return False
        payload = {**payload, "file": payload["file"][-_LONGEST_NAME:], "function": payload["function"][:_LONGEST_NAME]}
        is_written = self.define(layout.DEFINITION_CALL_SITE, number, payload)
        self._call_site_bytes += self._definitions_used - before
        return is_written

    def note_call(self, number: int, word: int) -> None:
        """Notes which line issued an operation, in place of an older one.

        number: of all operations so far; word: as ``ring_layout`` has it.
        """
        self._words[self._calls_word + (number & _CALLS_MASK)] = word

    def define_group(self, definition: dict[str, Any]) -> int:
        """Give a process group a row. Returns its index, or -1 where rows or definitions are used up (blind)."""
        with self._records_lock:
            group = self.groups_defined
            if group >= self.geometry.group_rows:
                self.groups_blind += 1
                return -1
            self.groups_defined = group + 1
        if not self.define(layout.DEFINITION_GROUP, group, definition):
            with self._records_lock:
                self.groups_blind += 1
            return -1
        row = self._row_word(layout.FIRST_GROUP_ROW + group)
        words = self._words
        words[row + (layout.G_STARTED >> 3)] = layout.UNKNOWN_U64
        self._open_group(group)
        words[row + (layout.G_IN_USE >> 3)] = 1
        self.append_event(EventKind.GROUP, group=group, value=int(definition.get("size", 0)))
        return group

    def drop_group(self, group: int) -> None:
        """Mark a group's row as destroyed; its numbers stay readable."""
        if 0 <= group < self.groups_defined:
            self._words[self._row_word(layout.FIRST_GROUP_ROW + group) + (layout.G_IN_USE >> 3)] = 2

    def _row_word(self, row: int) -> int:
        return (self.geometry.progress_offset + row * layout.ROW_BYTES) >> 3

    # --- heartbeat --------------------------------------------------------------------------------------------------
    def beat(
        self,
        hook_errors: int = 0,
        pending: int = 0,
        fr_enqueued: int = layout.UNKNOWN_U64,
        fr_completed: int = layout.UNKNOWN_U64,
        /,
    ) -> None:
        """Writes one heartbeat, with what the heartbeat thread counted. Only that thread calls this.

        The C recorder has its own.
        """
        row = self._row_word(layout.HEARTBEAT_ROW)
        words = self._words
        beats = words[row + (layout.B_BEATS >> 3)] + 1
        words[row] = 2 * beats - 1
        words[row + (layout.B_TIME_NS >> 3)] = time.monotonic_ns()
        words[row + (layout.B_BEATS >> 3)] = beats
        words[row + (layout.B_GROUPS_DEFINED >> 3)] = self.groups_defined
        words[row + (layout.B_GROUPS_BLIND >> 3)] = self.groups_blind
        words[row + (layout.B_HOOK_ERRORS >> 3)] = hook_errors
        words[row + (layout.B_PENDING >> 3)] = pending
        words[row + (layout.B_FR_ENQUEUED >> 3)] = fr_enqueued & layout.UNKNOWN_U64
        words[row + (layout.B_FR_COMPLETED >> 3)] = fr_completed & layout.UNKNOWN_U64
        words[row] = 2 * beats

    def phase_since_ns(self) -> int:
        """Monotonic time (ns) at which the shown phase began."""
        return self._words[self._row_word(layout.RANK_ROW) + (layout.R_PHASE_SINCE_NS >> 3)]

    # --- crash area -------------------------------------------------------------------------------------------------
    def record_exception(self, text: str, frames: Sequence[Frame], in_main: bool) -> bool:
        """Keeps the first uncaught exception: its text and stack. False: an earlier one is kept.

        The main thread's replaces a worker thread's: a worker's may be one that the training outlives.
        """
        stated = _cut_text(text, layout.C_EXC_TEXT_MAX)
        stack = _format_frames(frames, layout.C_EXC_STACK_MAX)
        crash = self.geometry.crash_offset
        words = self._words
        base = crash >> 3
        with self._records_lock:  # to the end: two threads may fail at once
            if self._exception_written and (self._exception_in_main or not in_main):
                return False
            self._exception_written = True
            self._exception_in_main = in_main
            version = words[base + (layout.C_EXC_VERSION >> 3)] | 1
            words[base + (layout.C_EXC_VERSION >> 3)] = version
            words[base + (layout.C_EXC_TIME_NS >> 3)] = time.monotonic_ns()
            words[base + (layout.C_EXC_STEP >> 3)] = words[self._row_word(layout.RANK_ROW) + (layout.R_STEP >> 3)]
            words[base + (layout.C_EXC_IN_MAIN >> 3)] = 1 if in_main else 0
            self._store(crash + layout.C_EXC_TEXT, stated)
            self._store(crash + layout.C_EXC_STACK, stack)
            words[base + (layout.C_EXC_TEXT_BYTES >> 3)] = len(stated)
            words[base + (layout.C_EXC_STACK_BYTES >> 3)] = len(stack)
            words[base + (layout.C_EXC_VERSION >> 3)] = version + 1
        self.append_event(EventKind.EXCEPTION, value=len(stated))
        return True

    def record_stack(self, frames: Sequence[Frame]) -> None:
        """Keeps this stack as the main thread's, in place of the last one. Only the heartbeat thread calls this."""
        crash = self.geometry.crash_offset
        base = crash >> 3
        words = self._words
        stack = _format_frames(frames, layout.C_STACK_MAX)
        version = words[base + (layout.C_STACK_VERSION >> 3)] | 1
        words[base + (layout.C_STACK_VERSION >> 3)] = version
        words[base + (layout.C_STACK_TIME_NS >> 3)] = time.monotonic_ns()
        words[base + (layout.C_STACK_BYTES >> 3)] = len(stack)
        self._store(crash + layout.C_STACK, stack)
        words[base + (layout.C_STACK_VERSION >> 3)] = version + 1

    def _store(self, offset: int, data: bytes) -> None:
        self._bytes[offset : offset + len(data)] = data


def _cut_text(text: str, limit: int) -> bytes:
    data = text.encode("utf-8", "replace")
    return data if len(data) <= limit else data[:limit].decode("utf-8", "ignore").encode()


def _format_frames(frames: Sequence[Frame], limit: int) -> bytes:
    """Lines of whole frames; where they do not all fit, the outermost are left out."""
    lines: list[bytes] = []
    used = 0
    for file, line, function in reversed(frames):
        text = f"{_one_line(file)}\t{line}\t{_one_line(function)}\n".encode("utf-8", "replace")
        if used + len(text) > limit:
            break
        lines.append(text)
        used += len(text)
    return b"".join(reversed(lines))


def _one_line(text: str) -> str:
    return text.replace("\t", " ").replace("\n", " ")
