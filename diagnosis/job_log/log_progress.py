"""Lines that say that training goes on, or that a checkpoint was saved, in the words of the usual trainers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..alike import asked_once_of_bytes
from .model import Progress

#: How many lines at each end of a stretch without trouble are looked at.
LOOKED_AT = 40
LONGEST = 600
STEP = re.compile(
    rb"\bit(?:er(?:ation)?s?)?[\"']?\s*[:=#]?\s*\[?\s*(?P<a>\d{1,9})(?![.\d]*%)(?:\s*/\s*(?P<at>\d{1,9}))?|"
    rb"\b(?:(?:global|train(?:ing)?|optimizer)[_ ]?)?steps?[\"']?\s*[:=#|"
    rb"]?\s*\[?\s*(?P<b>\d{1,9})(?![.\d]*%)(?:\s*/\s*(?P<bt>\d{1,9}))?|"
    rb"(?P<c>\d{1,9})/(?P<ct>\d{1,9}) \[\d+:\d\d|"
    rb"\{'loss': [\d.]+"
)
SAVED = re.compile(
    rb"(?:saved|saving|wrote|written|finished (?:saving|writing))\b.{0,80}\b(?:checkpoint|ckpt|model|state)"
    rb".{0,60}?\b(?:iteration|step|global_step|iter)[ _=:]*(?P<step>\d{1,9})|"
    rb"checkpoint.{0,60}\bsaved\b(?:.{0,60}?(?:iteration|step)[ _=:]*(?P<late>\d{1,9}))?"
)
#: Speaking of a step is not making one.
NOT_PROGRESS = re.compile(
    rb"\b(?:load(?:ing|ed)?|resum(?:e|ing)|start(?:ing)? (?:from|at)|restor(?:e|ing)|checkpoint|config|warmup|"
    rb"max_steps|total_steps|save_steps|eval_steps|timeout|watchdog)\b|(?:error|exception|traceback|fail)"
)
#: A bar of something else than steps of training.
OTHER_WORK = re.compile(
    rb"^\W*(?:map|filter|tokeni[sz]\w*|convert\w*|generat\w*|download\w*|extract\w*|prepar\w*|(?:pre-?)?process\w*|fetch\w*|pack\w*|"
    rb"group\w*|running tokenizer|casting|creat\w*|sav\w*|writ\w*|eval\w*|validat\w*|predict\w*|sampl\w*|"
    rb"inference|shard\w*|read\w*|"
    rb"resolv\w*|index\w*|build\w*|captur\w*|warm\w*|test\w*|sanity\w*|upload\w*|copy\w*|compil\w*)\b[^|]{0,80}\d{1,3}%\|"
)
#: Without one of these, in lower case, a line has no step; without one of the others it has no excuse.
HINT = re.compile(rb"step|it(?:er|[ :=])| \[|'loss'")
EXCUSES = (
    b"load", b"resum", b"start", b"restor", b"checkpoint", b"config", b"warmup", b"_steps", b"timeout",
    b"watchdog", b"error", b"exception", b"traceback", b"fail",
)  # fmt: skip
COLOUR = re.compile(rb"\x1b\[[0-9;]*[mM]")
SAVES = (b"saved", b"saving", b"wrote", b"written", b"writing")
#: How far before a hint its match may begin.
BEFORE_HINT = 24


@dataclass(frozen=True, slots=True)
class _StepPlace:
    """Where in a line its step and their total stand."""

    step: slice | None
    total: slice | None = None
    is_checkpoint: bool = False
    is_bar: bool = False


def progress_of(raw: bytes, source: int, number: int) -> Progress | None:
    """The step or checkpoint that a raw line tells of; None for other lines. source: index of the file."""
    if b"\r" in raw:
        # Of a bar that was drawn over and over the last counts.
        raw = raw.rstrip().rpartition(b"\r")[2]
    raw = raw[:LONGEST]
    if b"\x1b" in raw:
        raw = COLOUR.sub(b"", raw)
    told = _find_step(raw)
    if told is None:
        return None
    return Progress(
        source=source,
        number=number,
        step=int(raw[told.step]) if told.step is not None else None,
        total=int(raw[told.total]) if told.total is not None else None,
        checkpoint=told.is_checkpoint,
        is_bar=told.is_bar,
    )


@asked_once_of_bytes
def _find_step(low: bytes) -> _StepPlace | None:
    """low: in lower case, with a zero for each digit."""
    hint = HINT.search(low)
    if hint is None:
        return None
    if _holds(low, SAVES) and (saved := SAVED.search(low)):
        return _StepPlace(_place(saved, "step", "late"), is_checkpoint=True)
    match = STEP.search(low, max(0, hint.start() - BEFORE_HINT))
    if match is None or (_holds(low, EXCUSES) and NOT_PROGRESS.search(low)):
        return None
    if b"%|" in low and OTHER_WORK.search(low):
        return None
    return _StepPlace(_place(match, "a", "b", "c"), _place(match, "at", "bt", "ct"), is_bar=match["c"] is not None)


def _place(match: re.Match[bytes], *names: str) -> slice | None:
    """Of the first of these groups that is in the match."""
    return next((slice(*match.span(name)) for name in names if match[name]), None)


def _holds(low: bytes, words: tuple[bytes, ...]) -> bool:
    return any(word in low for word in words)


def first_progress(chunk: bytes, start: int, end: int, number: int, source: int) -> Iterator[Progress]:
    """Steps and checkpoints in the first ``LOOKED_AT`` lines of ``chunk[start:end]``, in order.

    number: of its first line; source: index of the file.
    """
    for _ in range(LOOKED_AT):
        if start >= end:
            return
        stop = chunk.find(b"\n", start, end)
        stop = end if stop < 0 else stop
        if found := progress_of(_part(chunk, start, stop), source, number):
            yield found
        start, number = stop + 1, number + 1


def last_progress(chunk: bytes, start: int, end: int, last_number: int, source: int) -> Iterator[Progress]:
    """Steps and checkpoints in the last ``LOOKED_AT`` lines of ``chunk[start:end]``, from the end backwards.

    last_number: of its last line; source: index of the file.
    """
    end -= 1
    for _ in range(LOOKED_AT):
        if end < start:
            return
        begin = chunk.rfind(b"\n", start, end) + 1 or start
        if found := progress_of(_part(chunk, begin, end), source, last_number):
            yield found
        end, last_number = begin - 1, last_number - 1


def _part(chunk: bytes, start: int, end: int) -> bytes:
    """The begin of a long line, but the end of one that was drawn over with carriage returns."""
    if end - start <= LONGEST:
        return chunk[start:end]
    over = chunk.rfind(b"\r", start, end - 2)
    begin = start if over < 0 else over
    return chunk[begin : min(end, begin + LONGEST)]
