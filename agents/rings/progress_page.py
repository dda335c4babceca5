"""Rows of the progress page: the rank row, the heartbeat row and a row per process group. Pure.

Takes the two copies that RingFile.read_page returns; a row is None unless both copies agree under an even version.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ...telemetry import ring_layout as L

_RANK = struct.Struct("<5Q2d8Q")
_HEARTBEAT = struct.Struct("<9Q")
_HALF = struct.Struct("<8Q")
_WORD = struct.Struct("<Q")
assert _RANK.size == L.R_SPARE
assert _HEARTBEAT.size == L.B_FR_COMPLETED + 8
_I64_MAX = (1 << 63) - 1
_HEARTBEAT_OFFSET = L.HEARTBEAT_ROW * L.ROW_BYTES


@dataclass(frozen=True, slots=True)
class RankRow:
    version: int
    step: int
    phase: int
    phase_since_ns: int
    step_since_ns: int
    loss: float
    grad_norm: float
    loss_step: int
    level: int
    hook_state: int
    cost_ns: int
    calls: int
    exit_state: int
    flags: int
    microsteps: int


@dataclass(frozen=True, slots=True)
class HeartbeatRow:
    version: int
    time_ns: int
    beats: int
    groups_defined: int
    groups_blind: int
    hook_errors: int
    pending: int
    fr_enqueued: int
    fr_completed: int


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Counters of one group. -1 where the backend cannot tell; ``oldest_open_ns`` 0 = nothing open."""

    enqueued: int
    p2p_enqueued: int
    enqueue_ns: int
    signature: int
    nbytes: int
    peer: int
    in_use: int
    completed: int
    p2p_completed: int
    complete_ns: int
    started: int
    oldest_open_ns: int
    open: int
    started_ns: int = 0

    @property
    def op(self) -> int:
        """``Op`` (operation) of the group's newest call, from the low byte of the signature."""
        return self.signature & 0xFF

    @property
    def flags(self) -> int:
        """``EventFlag`` bits of the group's newest call."""
        return self.signature >> 8 & 0xFF

    @property
    def dtype(self) -> int:
        """``Dtype`` of the group's newest call."""
        return self.signature >> 16 & 0xFFFF


def clamp_i64(value: int) -> int:
    """A 64-bit word as a signed number that fits every column; nonsense and 'unknown' become -1."""
    return value if value <= _I64_MAX else -1


def _stable(first: bytes, second: bytes, start: int, size: int) -> bool:
    return (
        len(second) >= start + size
        and not first[start] & 1
        and first[start : start + size] == second[start : start + size]
    )


def parse_rank_row(first: bytes, second: bytes) -> RankRow | None:
    """The rank row, from two reads of the page.

    None where they differ (it was being written) or it was never written.
    """
    if not _stable(first, second, 0, _RANK.size):
        return None
    row = RankRow(*_RANK.unpack_from(second, 0))
    return row if row.version else None


def parse_heartbeat_row(first: bytes, second: bytes) -> HeartbeatRow | None:
    """The heartbeat row, from two reads of the page; None as for ``parse_rank_row``."""
    if not _stable(first, second, _HEARTBEAT_OFFSET, _HEARTBEAT.size):
        return None
    row = HeartbeatRow(*_HEARTBEAT.unpack_from(second, _HEARTBEAT_OFFSET))
    return row if row.version else None


def heartbeat_time_ns(first: bytes, second: bytes) -> int | None:
    """The heartbeat row's time (monotonic ns) alone, from two reads of the page; None while it is being written."""
    if not _stable(first, second, _HEARTBEAT_OFFSET, 16):
        return None
    return int(_WORD.unpack_from(second, _HEARTBEAT_OFFSET + L.B_TIME_NS)[0])


def parse_group_row(first: bytes, second: bytes, index: int) -> GroupRow | None:
    """Group row ``index``, from two reads of the page; None while it is being written.

    Its two halves have versions of their own: each must be stable by itself.
    """
    start = (L.FIRST_GROUP_ROW + index) * L.ROW_BYTES
    half = L.ROW_BYTES // 2
    if not (_stable(first, second, start, half) and _stable(first, second, start + half, half)):
        return None
    words = _HALF.unpack_from(second, start)
    done = _HALF.unpack_from(second, start + half)
    return GroupRow(
        enqueued=clamp_i64(words[1]),
        p2p_enqueued=clamp_i64(words[2]),
        enqueue_ns=clamp_i64(words[3]),
        signature=words[4],
        nbytes=clamp_i64(words[5]),
        peer=words[6] - 1 if words[6] < 1 << 31 else -1,
        in_use=words[7],
        completed=clamp_i64(done[1]),
        p2p_completed=clamp_i64(done[2]),
        complete_ns=clamp_i64(done[3]),
        started=clamp_i64(done[4]),
        oldest_open_ns=max(clamp_i64(done[5]), 0),
        open=done[6] if done[6] < 1 << 31 else -1,
        started_ns=max(clamp_i64(done[7]), 0),
    )
