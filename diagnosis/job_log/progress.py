"""Lines that say that training goes on, or that a checkpoint was saved, in the words of the usual trainers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .model import Progress

#: How many lines at each end of a stretch without trouble are looked at.
LOOKED_AT = 40
LONGEST = 600
STEP = re.compile(
    rb"\biterations?\s*[:=#]?\s*(?P<a>\d{1,9})(?:\s*/\s*(?P<at>\d{1,9}))?|"
    rb"\b(?:global[_ ]?)?steps?\s*[:=#|]?\s*(?P<b>\d{1,9})(?:\s*/\s*(?P<bt>\d{1,9}))?|"
    rb"(?P<c>\d{1,9})/(?P<ct>\d{1,9}) \[\d+:\d\d|"
    rb"\{'loss': [\d.]+",
    re.IGNORECASE,
)
SAVED = re.compile(
    rb"(?:saved|saving|wrote|written|finished (?:saving|writing))\b.{0,80}\b(?:checkpoint|ckpt|model|state)"
    rb".{0,60}?\b(?:iteration|step|global_step|iter)[ _=:]*(?P<step>\d{1,9})|"
    rb"checkpoint.{0,60}\bsaved\b(?:.{0,60}?(?:iteration|step)[ _=:]*(?P<late>\d{1,9}))?",
    re.IGNORECASE,
)
#: Speaking of a step is not making one.
NOT_PROGRESS = re.compile(
    rb"\b(?:load(?:ing|ed)?|resum(?:e|ing)|start(?:ing)? (?:from|at)|restor(?:e|ing)|checkpoint|config|warmup|"
    rb"max_steps|total_steps|save_steps|eval_steps|timeout|watchdog)\b|(?:error|exception|traceback|fail)",
    re.IGNORECASE,
)
HINTS = (b"iter", b"tep", b"Iter", b"STEP", b"/", b"'loss'")


def progress_of(raw: bytes, source: int, number: int) -> Progress | None:
    raw = raw[:LONGEST]
    if not any(hint in raw for hint in HINTS):
        return None
    if saved := SAVED.search(raw):
        step = saved["step"] or saved["late"]
        return Progress(source=source, number=number, step=int(step) if step else None, checkpoint=True)
    match = STEP.search(raw)
    if match is None or NOT_PROGRESS.search(raw):
        return None
    step, total = match["a"] or match["b"] or match["c"], match["at"] or match["bt"] or match["ct"]
    return Progress(source=source, number=number, step=int(step) if step else None, total=int(total) if total else None)


def first_progress(chunk: bytes, start: int, end: int, number: int, source: int) -> Iterator[Progress]:
    """Training progress in the first lines of a stretch, in order."""
    for _ in range(LOOKED_AT):
        if start >= end:
            return
        stop = chunk.find(b"\n", start, end)
        stop = end if stop < 0 else stop
        if found := progress_of(chunk[start : min(stop, start + LONGEST)], source, number):
            yield found
        start, number = stop + 1, number + 1


def last_progress(chunk: bytes, start: int, end: int, last_number: int, source: int) -> Iterator[Progress]:
    """The same from the end of a stretch backwards; ``last_number`` is its last line's."""
    end -= 1
    for _ in range(LOOKED_AT):
        if end < start:
            return
        begin = chunk.rfind(b"\n", start, end) + 1 or start
        if found := progress_of(chunk[begin : min(end, begin + LONGEST)], source, last_number):
            yield found
        end, last_number = begin - 1, last_number - 1
