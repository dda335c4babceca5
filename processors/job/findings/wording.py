"""How ranks, operations and times are spelled in evidence: words that a person reads at three in the morning."""

from __future__ import annotations

from ....telemetry.evidence_facts import signal_word as signal_word
from ....telemetry.ring_layout import ranks_words as ranks_words
from ....telemetry.vocabulary import Op, Phase, ProcessState

PROCESS_WORDS = {
    ProcessState.UNKNOWN: "process state unknown",
    ProcessState.RUNNING: "process running (R)",
    ProcessState.SLEEPING: "process sleeping (S)",
    ProcessState.DISK_WAIT: "process in uninterruptible disk wait (D)",
    ProcessState.STOPPED: "process stopped (T)",
    ProcessState.ZOMBIE: "process dead, not yet reaped (Z)",
    ProcessState.DEAD: "process gone",
}


def cut_short(text: str, chars: int) -> str:
    """``text``, or so many characters of it with an ellipsis as the last."""
    return text if len(text) <= chars else f"{text[: chars - 1].rstrip()}…"


def op_word(op: int) -> str:
    """``all_reduce``; ``operation 99`` for a number this release does not know."""
    try:
        return Op(op).name.lower()
    except ValueError:
        return f"operation {op}"


def phase_word(phase: int) -> str:
    """``forward``; ``unknown`` for a number this release does not know."""
    try:
        return Phase(phase).name.lower()
    except ValueError:
        return "unknown"


def process_words(state: int) -> str:
    """The kernel's state of a process in words; "process state unknown" for a number this release does not know."""
    try:
        return PROCESS_WORDS[ProcessState(state)]
    except ValueError:
        return PROCESS_WORDS[ProcessState.UNKNOWN]


def duration_words(duration_ns: int | float) -> str:
    """Two or three figures, in the unit that suits: ``"180 ms"``, ``"4.2 s"``, ``"26 min"``."""
    seconds = max(0.0, float(duration_ns) / 1e9)
    if seconds < 1.0:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120.0 else f"{seconds / 60:.0f} min"


def bytes_words(count: int) -> str:
    """``4,096 bytes``."""
    return f"{count:,} bytes"


def seconds(time_ns: int | float) -> float:
    """Unix seconds of Unix ns, as incidents carry them; rounded to microseconds, all that a float of
    this size holds.
    """
    return round(float(time_ns) / 1e9, 6)
