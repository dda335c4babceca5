"""Stacks as frames, and which of them is the user's own code. Pure.

The text form is the ring's: one ``file\\tline\\tfunction\\n`` per frame, innermost last.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...telemetry.user_code import is_framework_file, is_user_file

MAX_FRAMES = 256


@dataclass(frozen=True, slots=True)
class UserFrame:
    file: str
    line: int
    function: str


def parse_stack(text: str) -> tuple[UserFrame, ...]:
    """Frames of a stack in the ring's text form (see ``format_stack``), ``MAX_FRAMES`` lines at most.

    Lines that are no frame are skipped; a line number that cannot be read is 0.
    """
    frames: list[UserFrame] = []
    for line in text.splitlines()[:MAX_FRAMES]:
        parts = line.split("\t")
        if len(parts) >= 2 and parts[0]:
            number = int(parts[1]) if parts[1].isascii() and parts[1].isdigit() and len(parts[1]) < 10 else 0
            frames.append(UserFrame(parts[0], number, parts[2] if len(parts) > 2 else ""))
    return tuple(frames)


def format_stack(frames: tuple[UserFrame, ...] | list[UserFrame]) -> str:
    """One line per frame: file, line number and function between tabs, the form that RANK_EXCEPTION carries."""
    return "".join(f"{frame.file}\t{frame.line}\t{frame.function}\n" for frame in frames)


def innermost_user_frame(frames: tuple[UserFrame, ...]) -> UserFrame | None:
    """The last frame of the user's code, else the last of the framework that runs it; else None, never torch's."""
    for frame in reversed(frames):
        if is_user_file(frame.file):
            return frame
    for frame in reversed(frames):
        if is_framework_file(frame.file):
            return frame
    return None
