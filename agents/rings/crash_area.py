"""The crash area of a ring: the uncaught exception, the fatal signal, the stack of a stuck main thread. Pure parsing.

Lengths in the area are claims like any other and are cut to what the layout allows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ...telemetry import ring_layout as L
from ..base.user_frames import UserFrame, parse_stack
from .progress_page import clamp_i64
from .ring_file import RingFile
from .ring_texts import is_cut

_EXCEPTION = struct.Struct("<6Q")
_SIGNAL = struct.Struct("<4Q")
_STACK = struct.Struct("<3Q")
_TRIES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RingException:
    """An uncaught exception as the rank recorded it. ``complete`` is False if its writer died while writing."""

    version: int
    time_ns: int
    step: int
    type_name: str
    message: str
    frames: tuple[UserFrame, ...]
    in_main: bool
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FatalSignal:
    number: int
    time_ns: int
    sender_pid: int
    sender_uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RingStack:
    time_ns: int
    frames: tuple[UserFrame, ...]


def split_exception(text: str) -> tuple[str, str]:
    """Type name and message of an exception's text: ``"builtins.ValueError: bad"`` -> ``("ValueError", "bad")``.

    A text without a type name is a message of "Exception".
    """
    head, separator, message = text.partition(": ")
    if not separator or any(character.isspace() for character in head):
        head, message = (text, "") if text and not any(c.isspace() for c in text) else ("Exception", text)
    return head.removeprefix("builtins.").removeprefix("__main__."), message


def read_exception(ring: RingFile, *, writer_is_dead: bool) -> RingException | None:
    """The exception record, or None if there is none or (writer alive) it is still being written."""
    header = ring.header
    size = L.C_EXC_STACK + L.C_EXC_STACK_MAX
    if header.crash_bytes < size:
        return None
    raw = b""
    for _ in range(_TRIES):
        raw = ring.read(size, header.crash_offset)
        again = ring.read(8, header.crash_offset + L.C_EXC_VERSION)
        if len(raw) < size or raw[:8] == bytes(8):
            return None
        if raw[:8] == again and not raw[0] & 1:
            break
    else:
        if not writer_is_dead:
            return None
    version, time_ns, step, text_bytes, stack_bytes, in_main = _EXCEPTION.unpack_from(raw, 0)
    text = raw[L.C_EXC_TEXT : L.C_EXC_TEXT + min(text_bytes, L.C_EXC_TEXT_MAX)].decode("utf-8", "replace")
    stack = raw[L.C_EXC_STACK : L.C_EXC_STACK + min(stack_bytes, L.C_EXC_STACK_MAX)].decode("utf-8", "replace")
    if is_cut(text_bytes, L.C_EXC_TEXT_MAX):
        text = L.cut_text(text, len(text) - 1)  # half a secret is not known as one
    type_name, message = split_exception(text.rstrip("\0"))
    return RingException(
        version=version,
        time_ns=clamp_i64(time_ns),
        step=clamp_i64(step),
        type_name=type_name,
        message=message,
        frames=parse_stack(stack),
        in_main=bool(in_main),
        complete=not version & 1,
    )


def read_signal(ring: RingFile) -> FatalSignal | None:
    """The fatal signal that the handler wrote; None where there was none or the area holds no valid one."""
    header = ring.header
    if header.crash_bytes < L.C_SIG_NUMBER + _SIGNAL.size:
        return None
    raw = ring.read(_SIGNAL.size, header.crash_offset + L.C_SIG_NUMBER)
    if len(raw) < _SIGNAL.size:
        return None
    number, time_ns, sender_pid, sender_uid = _SIGNAL.unpack(raw)
    if not 0 < number < 65:
        return None
    return FatalSignal(
        number=number,
        time_ns=clamp_i64(time_ns),
        sender_pid=sender_pid if sender_pid < 1 << 31 else 0,
        sender_uid=clamp_i64(sender_uid),
    )


def read_stack(ring: RingFile) -> RingStack | None:
    """The main thread's stack that the rank left itself, while stuck or at a fatal signal, if there is a whole one."""
    header = ring.header
    size = L.C_STACK + L.C_STACK_MAX - L.C_STACK_VERSION
    if header.crash_bytes < L.C_STACK + L.C_STACK_MAX:
        return None
    for _ in range(_TRIES):
        raw = ring.read(size, header.crash_offset + L.C_STACK_VERSION)
        again = ring.read(8, header.crash_offset + L.C_STACK_VERSION)
        if len(raw) < size or raw[:8] == bytes(8):
            return None
        if raw[:8] != again or raw[0] & 1:
            continue
        _, time_ns, stack_bytes = _STACK.unpack_from(raw, 0)
        start = L.C_STACK - L.C_STACK_VERSION
        text = raw[start : start + min(stack_bytes, L.C_STACK_MAX)].decode("utf-8", "replace")
        frames = parse_stack(text)
        return RingStack(time_ns=clamp_i64(time_ns), frames=frames) if frames else None
    return None
