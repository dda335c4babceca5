"""What a row of evidence says, as fields: how a process ended, what it raised and where, which node fell silent.

The row's sentence (``shows``) is made from it for people, and no program reads that again: whoever asks what happened
asks these fields. ``message`` is what another program wrote, so its words may be matched; all else are closed sets,
numbers and names. ``write_fact`` and ``read_fact`` are the edge to the JSON of findings and incidents. Pure, standard
library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

#: The field of a row that carries it.
FACT = "fact"
#: As people know them; of others the number tells more.
_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}


class How(Enum):
    """How something ended, or what it does instead."""

    #: By an exception; ``type``, ``message``.
    RAISED = "raised"
    #: By ``signal``, whoever sent it.
    SIGNAL = "signal"
    #: By its own ``abort()``.
    ABORTED = "aborted"
    #: With ``exit_code``.
    EXIT = "exit"
    #: Its process is gone, and nobody could see with which exit code.
    VANISHED = "vanished"
    #: It came to the end of its script.
    LEFT = "left"
    #: All ranks at once; ``endings`` has the first of them.
    TOGETHER = "together"
    #: Nothing but errors that say that a peer went away; ``endings`` has the first of them.
    VICTIMS = "victims"
    #: Of a node's whichrank: nothing comes from it.
    SILENT = "silent"
    #: The same, and its connection was closed.
    CLOSED = "closed"


class SignalSender(Enum):
    """Who sent a signal."""

    ITSELF = "itself"
    LAUNCHER = "launcher"
    PROCESS = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceFact:
    """One row's machine part; what does not apply or is not known stays as it is here.

    rank: whom it is about; ranks: several, as ranges, of whom it tells the same. step, phase: where it was then.
    in_thread: an exception of a thread that is not the main one. endings: of several ranks, the first few.
    """

    how: How | None = None
    rank: int | None = None
    ranks: str = ""
    node: str = ""
    type: str = ""
    message: str = ""
    in_thread: bool = False
    signal: int = 0
    sender: SignalSender | None = None
    sender_pid: int = 0
    exit_code: int | None = None
    file: str = ""
    line: int | None = None
    function: str = ""
    step: int | None = None
    phase: str = ""
    endings: tuple[EvidenceFact, ...] = ()

    @property
    def said(self) -> str:
        """Type and message of what was raised, ``"OSError: [Errno 5]"``; of several endings one line each."""
        own = f"{self.type}: {self.message}" if self.message else self.type
        return "\n".join(filter(None, (own, *(ending.said for ending in self.endings))))

    @property
    def is_repeat(self) -> bool:
        """Whether the row counts others that ended as somebody did who has a row of his own."""
        return self.rank is None and not self.endings

    def without_place(self) -> EvidenceFact:
        """The fact without step and phase, to compare endings wherever they happened."""
        return replace(self, step=None, phase="")


def signal_word(signal: int) -> str:
    """The name of a signal by number: ``"SIGKILL"``, ``"signal 34"`` for one without a name."""
    return _SIGNALS.get(signal, f"signal {signal}")


_PLAIN = EvidenceFact()
_TEXTS = ("ranks", "node", "type", "message", "file", "function", "phase")
_COUNTS = ("rank", "signal", "sender_pid", "exit_code", "line", "step")
_ENUMS: tuple[tuple[str, type[Enum]], ...] = (("how", How), ("sender", SignalSender))
#: Endings of endings are not told.
_DEPTH = 2


def write_fact(fact: EvidenceFact) -> dict[str, Any]:
    """The fact as JSON data: what is known, in the order of the fields."""
    written: dict[str, Any] = {}
    for name in EvidenceFact.__slots__:
        value = getattr(fact, name)
        if value == getattr(_PLAIN, name):
            continue
        if isinstance(value, Enum):
            value = value.value
        written[name] = [write_fact(each) for each in value] if name == "endings" else value
    return written


def read_fact(row: Mapping[str, Any]) -> EvidenceFact | None:
    """The fact in a row of evidence (JSON data); None where it carries none. What cannot be read is unknown."""
    return _read(row.get(FACT), _DEPTH)


def _read(written: object, depth: int) -> EvidenceFact | None:
    if not isinstance(written, Mapping) or not depth:
        return None
    values: dict[str, Any] = {name: text for name in _TEXTS if isinstance(text := written.get(name), str)}
    for name in _COUNTS:
        count = written.get(name)
        if isinstance(count, int) and not isinstance(count, bool):
            values[name] = count
    for name, known in _ENUMS:
        values[name] = next((member for member in known if member.value == written.get(name)), None)
    endings = written.get("endings")
    if isinstance(endings, list):
        values["endings"] = tuple(filter(None, (_read(each, depth - 1) for each in endings)))
    return EvidenceFact(**values, in_thread=written.get("in_thread") is True)
