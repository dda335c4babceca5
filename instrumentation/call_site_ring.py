"""Which line of the user's code issued each of the newest operations: kept in the ring beside their numbers.

A rank that calls something else than its peers is often gone before anybody can take its stack, and where calls return
at once it stands somewhere else by then. So each call's line is found while it is issued: the innermost frame of the
user's own code, of a framework that runs it if there is none. It costs a walk over a handful of frames; file, line and
function are written once for each line, as a definition of the ring.

Runs on the thread that issues, with its GIL. Calls of C++ threads (autograd's, of a device) have no frames, and none
of them is kept.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from ..telemetry import ring_layout as layout
from ..telemetry.user_code import is_framework_file, is_user_file

if TYPE_CHECKING:
    from .ring_writer import RankRecorder

_FOREIGN, _FRAMEWORK, _USER = range(3)
#: Files whose sort is remembered; a job has some hundreds.
_MOST_FILES = 4096
#: Frames that are looked at.
_DEEPEST = 64


class CallSites:
    """``note`` is called once for each operation, from C as well."""

    __slots__ = ("_codes", "_count", "_files", "_is_full", "_sites", "_writer")

    def __init__(self, writer: RankRecorder) -> None:
        self._writer = writer
        self._files: dict[str, int] = {}
        #: By code object's id and place in it; the code objects are kept, else another could get the same id.
        self._sites: dict[tuple[int, int], int] = {}
        self._codes: list[CodeType] = []
        self._count = 0
        self._is_full = False

    def note(self, mark: int, /) -> None:
        """Notes which line of the user's code issues the operation of this ``call_mark``, just now. Never raises."""
        try:
            site = self._site(sys._getframe(1))
            self._count = count = self._count + 1
            self._writer.note_call(count, mark | site)
        except Exception as error:
            if not self._is_full:
                self._give_up(f"lines of calls are not kept: {type(error).__name__}: {error}")

    def _site(self, frame: FrameType | None) -> int:
        files = self._files
        framework: FrameType | None = None
        for _ in range(_DEEPEST):
            if frame is None:
                break
            file = frame.f_code.co_filename
            sort = files.get(file)
            if sort is None:
                sort = self._sort_of(file)
            if sort == _USER:
                return self._number(frame)
            if sort == _FRAMEWORK and framework is None:
                framework = frame
            frame = frame.f_back
        return 0 if framework is None else self._number(framework)

    def _sort_of(self, file: str) -> int:
        sort = _USER if is_user_file(file) else _FRAMEWORK if is_framework_file(file) else _FOREIGN
        if len(self._files) < _MOST_FILES:
            self._files[file] = sort
        return sort

    def _number(self, frame: FrameType) -> int:
        code = frame.f_code
        number = self._sites.get((id(code), frame.f_lasti))
        return self._define(code, frame) if number is None else number

    def _define(self, code: CodeType, frame: FrameType) -> int:
        """0 where there is no more room: said once, in the ring."""
        if self._is_full:
            return 0
        number = len(self._sites) + 1
        payload = {"file": code.co_filename, "line": frame.f_lineno or 0, "function": code.co_name}
        if number > layout.CALL_SITE_MASK or not self._writer.define_call_site(number, payload):
            self._give_up(f"of more than {number - 1} lines that issue operations the others are not kept")
            return 0
        self._codes.append(code)
        self._sites[id(code), frame.f_lasti] = number
        return number

    def _give_up(self, text: str) -> None:
        self._is_full = True
        self._writer.define(layout.DEFINITION_NOTE, 0, {"text": layout.cut_text(text, 500)})
