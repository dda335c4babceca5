"""Tracebacks of Python as one statement each, however their lines lie between those of other ranks.

A stream (one writer) has at most one chain open: exceptions linked by "direct cause" or "during handling", or wrapped
by a DataLoader, a spawned process or Ray. A chain is handed out when its stream says something else or nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from ...telemetry.ring_layout import cut_text
from ..alike import asked_once
from .carriers import LOUD_LEVELS, WARNINGS
from .model import LogLine, TracebackFrame
from .ways import TRACEBACK

FRAME = re.compile(r'File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,7})(?:,? in (?P<function>.{1,200}))?')
#: A frame as rich draws it.
BOXED_FRAME = re.compile(r"(?P<file>\S+\.\w+|<\w+>):(?P<line>\d{1,7}) in (?P<function>\S+)")
#: What follows a traceback that was caught and does no harm.
HANDLED = re.compile(
    r"\b(?:fall(?:ing|s)? ?back|continuing|ignor(?:ed|ing)|skipp(?:ed|ing)|will (?:retry|use|continue|try)|"
    r"retrying|using .{1,60}instead|"
    r"disabl(?:ed|ing)|recovered|proceeding|as expected|expected (?:error|exception)|caught and handled|non-?fatal)\b",
    re.IGNORECASE,
)
#: The line that ends a traceback: a dotted type, then its message if it has one.
EXCEPTION = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:\([\w.]+\))?)(?:: ?(?P<message>.*))?$")
#: Outside of a traceback a type must look like one.
BARE = re.compile(
    r"(?:ERROR:? ?|E {1,7})?"
    r"(?P<type>(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failed|Timeout|ChildFailed|Unavailable|OutOfResources)"
    r"(?:\([\w.]+\))?|(?:[a-z_]\w*\.)+_?[A-Z][A-Za-z]\w+)(?:: ?(?P<message>.*)|\s*)$"
)
QUOTED = re.compile(
    r"""['"]((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b[^'"]{0,1000}?)(?:\\n)?['"]\s*[\])]"""
)
CAUSE = "The above exception was the direct cause of the following exception"
CONTEXT = "During handling of the above exception, another exception occurred"
#: A message that says: what follows below is the exception that was really raised.
CARRIED = re.compile(
    r"Caught \w+ in (?:DataLoader worker process|replica|pin memory thread)|"
    r"terminated with the following error|RayTaskError|Original Traceback|ExceptionGroup|"
    r"while (?:executing|evaluating) .{0,80}:$"
)
#: Functions that run when a process is already ending.
ENDING = frozenset(
    {"_run_finalizers", "_cleanup", "__del__", "_exit_function", "_exitfunc", "destroy_process_group", "_shutdown",
     "_python_exit", "_shutdown_workers", "_run_exitfuncs", "shutdown", "_teardown", "teardown", "close_all"}
)  # fmt: skip
MESSAGE_LINES = 12
MOST_LEAD = 80
MOST_FRAMES = 200
MOST_CHAIN = 16
MOST_CODE = 200
MOST_STREAMS = 1 << 14
FEW_STREAMS = 64
#: Lines of others that may stand between two of one stream before it counts as silent.
SILENT_LINES = 400
LINES_PER_STREAM = 24
#: After the last line of an exception its stream may still say that it was a cause.
TRAILING_LINES = 12


#: Stands for the type of an exception whose traceback has no end in the log.
CUT_OFF = "Traceback"


class ExceptionLink(Enum):
    """How an exception relates to the one before it in the chain."""

    FIRST = "first"
    CAUSED_BY = "caused by"
    WHILE_HANDLING = "while handling"
    #: The one before only carried this one.
    CARRIED_BY = "carried by"


@dataclass(slots=True, kw_only=True)
class Raised:
    """One exception of a chain. ``line`` is where its type and message stand; complete once ``kind`` is not ""."""

    link: ExceptionLink
    first: LogLine
    frames: list[TracebackFrame] = field(default_factory=list)
    line: LogLine
    kind: str = ""
    message: str = ""
    more: int = 0
    #: Said right behind it: somebody caught it and went on. Right before it: a warning.
    is_handled: bool = False
    is_warned: bool = False

    @property
    def text(self) -> str:
        """Type and message, as Python's last line of a traceback has them."""
        return f"{self.kind}: {self.message}" if self.message else self.kind

    @property
    def is_ending(self) -> bool:
        """Whether the exception was raised while something was taken down, by the names of its frames."""
        return any(frame.function.split(".")[-1] in ENDING for frame in self.frames)


@dataclass(slots=True)
class _Open:
    chain: list[Raised]
    #: Columns before "Traceback": what stands further left ends it.
    indent: int
    last_number: int
    link: ExceptionLink | None = None
    #: "Exception ignored in" stood before: it was raised while something was taken down.
    is_ignored: bool = False
    #: Its frames are not indented: a carrier has eaten leading blanks.
    is_flat: bool = False
    #: What stands before each of its lines, where no carrier is known for it.
    lead: re.Pattern[str] | None = None
    is_handled: bool = False
    is_warned: bool = False

    @property
    def is_raised(self) -> bool:
        return bool(self.chain[-1].kind)


class Tracebacks:
    """``feed`` lines; take chains from ``done``."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int | None, int | None, str | None], _Open] = {}
        self.done: list[list[Raised]] = []
        self._looked_at = 0
        self._ignored: set[tuple[int, int | None, int | None, str | None]] = set()
        #: The last line fed that was of no traceback: a warning right before one tells that it was caught.
        self._before: LogLine | None = None

    def wants_next(self) -> bool:
        """Whether a traceback is open that the next line may belong to."""
        return bool(self._open)

    @property
    def is_cut(self) -> bool:
        """Whether an open traceback has no exception yet: its last lines are still to come, or never will."""
        return any(not chain.is_raised for chain in self._open.values())

    def feed(self, line: LogLine) -> bool:
        """Whether the line is part of a traceback. Chains of exceptions that are complete are added to ``done``."""
        self._end_silent(line)
        stream = line.stream
        chain = self._open.get(stream)
        if TRACEBACK in line.text and "\\n" not in line.text:
            self._begin(stream, chain, line)
            return True
        if line.text.startswith("Exception ignored in"):
            self._ignored.add(stream)
            return False
        if chain is None:
            self._before = line
            return False
        chain.last_number = line.number
        took = self._continue(chain, _without_lead(chain, line))
        if took is None:
            chain.is_handled |= _is_handled(chain, line)
            self._finish(stream)
            self._before = line
            return False
        if not took:
            chain.is_handled |= _is_handled(chain, line)
        return took

    def passes(self, line: LogLine) -> None:
        """Notes a line by itself, while nothing is open: a traceback's lead may be learnt from it."""
        self._before = line

    def finish(self) -> None:
        """Ends every open traceback: its chain is added to ``done``."""
        for stream in list(self._open):
            self._finish(stream)

    def _begin(
        self, stream: tuple[int, int | None, int | None, str | None], chain: _Open | None, line: LogLine
    ) -> None:
        raised = Raised(link=ExceptionLink.FIRST, first=line, line=line)
        if chain is not None:
            carried = chain.is_raised and CARRIED.search(chain.chain[-1].message + chain.chain[-1].kind)
            if chain.link is not None or carried or "Original Traceback" in line.text:
                raised.link = chain.link or ExceptionLink.CARRIED_BY
                chain.link = None
                if not chain.is_raised:
                    chain.chain.pop()
                chain.chain.append(raised)
                del chain.chain[1 : max(1, len(chain.chain) - MOST_CHAIN + 1)]
                chain.indent, chain.last_number = line.indent, line.number
                return
            self._finish(stream)
        if len(self._open) >= MOST_STREAMS:
            self._finish(next(iter(self._open)))
        self._open[stream] = _Open([raised], line.indent, line.number, is_ignored=stream in self._ignored)
        self._open[stream].lead = _lead(line)
        self._open[stream].is_warned = self._is_warned(line)
        self._ignored.discard(stream)

    def _is_warned(self, line: LogLine) -> bool:
        """Whether a logger wrote it below a warning: Python's exc_info of something that was caught."""
        before = self._before
        if before is None or line.level:
            return line.level in WARNINGS
        return before.level in WARNINGS and before.stream == line.stream and line.number - before.number == 1

    def _continue(self, chain: _Open, line: LogLine) -> bool | None:
        """True: taken; False: not part of it, but it may go on; None: it has ended before this line."""
        last = chain.chain[-1]
        text = line.text
        if CAUSE in text or CONTEXT in text:
            chain.link = ExceptionLink.CAUSED_BY if CAUSE in text else ExceptionLink.WHILE_HANDLING
            return True
        if line.is_boxed:
            return self._boxed(last, text)
        if not text or chain.link is not None:
            return not text or None
        frame = FRAME.match(text)
        if not last.kind:
            if frame:
                chain.is_flat |= line.indent <= chain.indent
                if len(last.frames) < MOST_FRAMES:
                    last.frames.append(TracebackFrame(frame["file"], int(frame["line"]), frame["function"] or ""))
                return True
            raised = EXCEPTION.match(text)
            if raised and (line.indent <= chain.indent or not last.frames) and _looks_raised(raised["type"], text):
                last.kind, last.message, last.line = raised["type"], raised["message"] or "", line
                return True
            if last.frames and not last.frames[-1].code and line.indent > chain.indent:
                last.frames[-1] = replace(last.frames[-1], code=cut_text(text, MOST_CODE))
            # Source lines, carets, "[Previous line repeated]": all further right than the beginning.
            return True if line.indent > chain.indent or chain.is_flat or set(text) <= set("~^ |+") else None
        if CARRIED.search(last.kind + last.message) and (frame or (EXCEPTION.match(text) and BARE.match(text))):
            chain.chain.append(Raised(link=ExceptionLink.CARRIED_BY, first=line, line=line))
            return self._continue(chain, line)
        if BARE.match(text) or line.level:
            return None
        # Of a message of several lines only what is further right is certain, or what follows an empty first line.
        if last.more < MESSAGE_LINES and (line.indent > chain.indent or not last.message.strip()):
            last.more += 1
            if set(text) <= set("+-0123456789. "):
                return True
            last.message += "\n" + cut_text(text, 500)
            return True
        return False

    def _boxed(self, last: Raised, text: str) -> bool:
        frame = BOXED_FRAME.match(text)
        if frame and not last.kind and len(last.frames) < MOST_FRAMES:
            last.frames.append(TracebackFrame(frame["file"], int(frame["line"]), frame["function"]))
        return True

    def _end_silent(self, line: LogLine) -> None:
        # With thousands of ranks in one log a rank's next line is thousands of lines away; and looking at all is dear.
        if len(self._open) > FEW_STREAMS and 0 <= line.number - self._looked_at < len(self._open):
            return
        self._looked_at = line.number
        silent_lines = SILENT_LINES + LINES_PER_STREAM * len(self._open)
        for stream, chain in list(self._open.items()):
            if stream[0] != line.source:
                self._finish(stream)
                continue
            patience = TRAILING_LINES if chain.is_raised and chain.link is None else silent_lines
            if line.number - chain.last_number > patience:
                self._finish(stream)

    def _finish(self, stream: tuple[int, int | None, int | None, str | None]) -> None:
        chain = self._open.pop(stream)
        raised = [each for each in chain.chain if each.kind]
        if not raised:
            first = chain.chain[0]
            # Cut off before its end: that something was raised is all that is known.
            first.kind, first.line = CUT_OFF, first.first
            raised = [first]
        for each in raised:
            each.is_handled, each.is_warned = chain.is_handled, chain.is_warned
        if chain.is_ignored:
            for each in raised:
                each.frames.append(TracebackFrame("", 0, "__del__"))
        self.done.append(raised)


def _lead(line: LogLine) -> re.Pattern[str] | None:
    """A pattern of what stood before the first line, any number for its numbers: it stands before the others too."""
    lead = line.lead.strip(" \t")
    if not 1 < len(lead) <= MOST_LEAD or "%|" in lead or TRACEBACK in lead:
        return None
    return re.compile(r"\d+".join(re.escape(part) for part in re.split(r"\d+", lead)) + " ?")


def _without_lead(chain: _Open, line: LogLine) -> LogLine:
    if chain.lead is None or not (match := chain.lead.match(line.text)):
        return line
    rest = line.text[match.end() :]
    body = rest.lstrip(" \t")
    return replace(line, text=body, indent=line.indent + len(rest) - len(body))


def _is_handled(chain: _Open, line: LogLine) -> bool:
    """The line right after an exception, not louder than a warning, that says how things went on."""
    last = chain.chain[-1]
    return (
        bool(last.kind)
        and line.number - last.line.number <= 2
        and line.level not in LOUD_LEVELS
        and HANDLED.search(line.text) is not None
    )


def _looks_raised(kind: str, text: str) -> bool:
    """A type of one small word is one only if its message follows ("timeout: timed out")."""
    last = kind.split(".")[-1]
    return last[:1].isupper() or last.startswith("_") or "." in kind or bool(re.match(r"[a-z_]\w*: ", text))


def bare_exception(line: LogLine) -> tuple[str, str] | None:
    """(type, message) of an exception that stands alone in its line; None for other lines."""
    match = BARE.match(line.text) if _is_bare(line.text) else None
    return (match["type"], match["message"] or "") if match else None


@asked_once
def _is_bare(text: str) -> bool:
    return BARE.match(text) is not None


def quoted_exceptions(text: str) -> Iterator[tuple[str, str]]:
    """(type, message) of each traceback that was written as a list of strings into one line."""
    for match in QUOTED.finditer(text[:20_000]):
        kind, _, message = match[1].replace("\\n", "").partition(": ")
        yield kind, message.strip()
