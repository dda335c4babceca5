"""Stacks as frames, and which of them is the user's own code. Pure.

The text form is the ring's: one ``file\\tline\\tfunction\\n`` per frame, innermost last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MAX_FRAMES = 256

#: Code that is never the user's: installed packages, torch in a source checkout, the standard library, frozen and
#: generated code.
_FOREIGN = re.compile(
    r"(^|/)(site-packages|dist-packages)/"
    r"|/lib(64)?/python3(\.\d+)?t?/"
    r"|/torch/(_\w+|ao|autograd|cuda|distributed|export|fx|jit|multiprocessing|nn|optim|profiler|utils)(/|\.py)"
    r"|/torch/\w+\.py$"
    r"|^<(frozen|__array_function__|eval_with_key)"
    r"|^$"
)
#: Where the framework is the program (``python -m``, a command of its own), its line says more than none.
_FRAMEWORK = re.compile(
    r"/(site|dist)-packages/(lightning|pytorch_lightning|transformers|accelerate|trl|deepspeed|megatron|torchtitan"
    r"|torchtune|axolotl|llamafactory|composer|nemo)/"
)
_PACKAGE = Path(__file__).resolve().parents[1].as_posix()
#: Our own hooks where they do not lie in site-packages. The demo script and the tests are user code like any other.
_OWN_FOLDERS = (f"{_PACKAGE}/instrumentation/", f"{_PACKAGE}/telemetry/")


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    function: str


def parse_stack(text: str) -> tuple[Frame, ...]:
    """Frames of a stack in the ring's text form; lines that are none are skipped."""
    frames: list[Frame] = []
    for line in text.splitlines()[:MAX_FRAMES]:
        parts = line.split("\t")
        if len(parts) >= 2 and parts[0]:
            number = int(parts[1]) if parts[1].isascii() and parts[1].isdigit() and len(parts[1]) < 10 else 0
            frames.append(Frame(parts[0], number, parts[2] if len(parts) > 2 else ""))
    return tuple(frames)


def format_stack(frames: tuple[Frame, ...] | list[Frame]) -> str:
    return "".join(f"{frame.file}\t{frame.line}\t{frame.function}\n" for frame in frames)


def is_user_file(file: str) -> bool:
    return not file.startswith(_OWN_FOLDERS) and not _FOREIGN.search(file)


def innermost_user_frame(frames: tuple[Frame, ...]) -> Frame | None:
    """The last frame of the user's code, else of the framework that runs it; None rather than a line of torch."""
    for frame in reversed(frames):
        if is_user_file(frame.file):
            return frame
    for frame in reversed(frames):
        if _FRAMEWORK.search(frame.file):
            return frame
    return None
