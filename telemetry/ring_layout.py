"""Layout of the per-rank ring file, version 1. The single definition; the C recorder's header is checked against it.

One mmap file per rank, written only by the training process, read with ``pread`` by the agent. All integers are
little-endian 64-bit words unless said otherwise; all times are nanoseconds of CLOCK_MONOTONIC of the node.

    header            4096 B   identity and offsets, written once before the file is renamed into place
    progress page              row 0: rank row; row 1: heartbeat row; then one row of 128 B per process group
    events                     ring of EVENT_SLOTS slots of 64 B
    definitions                append-only area of JSON entries (groups, attempt token)
    crash area                 exception, fatal signal, main-thread stack of a stuck phase; lines of the newest calls

Rules for the writer (docs/decisions/0001-ring.md): ``struct.pack_into`` zeroes its target before it
writes, so words that a reader polls are stored as 8-byte items of a ``memoryview.cast("Q")``; a row's version word is
odd while the row is written; the file is reserved with ``posix_fallocate`` and published by rename; a POSIX write lock
on byte 0 lives as long as the process; a forked child never writes.
Rules for the reader: trust nothing; a row counts only if its version is even and equal before and after; an event only
if ``begin == end == index + 1``; probe one slot past ``event_head``, because a writer can die between slot and head.
Standard library only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

MAGIC = b"WHCHRNK1"
LAYOUT_VERSION = 1
HEADER_BYTES = 4096
RING_SUFFIX = ".ring"
#: ``rank-00002.4711.1a2b3c.ring``: rank, pid, creation time (monotonic ns, hex).
RING_NAME = "rank-{rank:05d}.{pid}.{created_ns:x}.ring"
#: One word ("off", "status", "events") in this file of the ring directory switches all ranks of the directory.
LEVEL_FILE = "level"

# --- header: byte offsets -------------------------------------------------------------------------------------------
H_MAGIC = 0  # 8 bytes
H_LAYOUT = 8  # u64
H_FILE_BYTES = 16
H_PROGRESS_OFFSET = 24
H_GROUP_ROWS = 32  # capacity, without the rank and heartbeat rows
H_EVENTS_OFFSET = 40
H_EVENT_SLOTS = 48  # a power of two
H_DEFINITIONS_OFFSET = 56
H_DEFINITIONS_BYTES = 64
H_CRASH_OFFSET = 72
H_CRASH_BYTES = 80
H_PID = 88
H_PROCESS_START_TICKS = 96  # field 22 of /proc/PID/stat: tells a reused pid
H_CREATED_WALL_NS = 104
H_CREATED_MONO_NS = 112
H_RANK = 120
H_LOCAL_RANK = 128
H_WORLD_SIZE = 136
H_WRITER = 144  # 1 Python, 2 C
H_IDENTITY_BYTES = 152  # length of the JSON that starts at H_IDENTITY
H_IDENTITY = 160
IDENTITY_MAX_BYTES = 2816
# Hot words, alone in their cache lines.
H_EVENT_HEAD = 3072  # number of events published
H_DEFINITIONS_USED = 3136  # bytes of definitions published
H_EVENTS_DROPPED = 3200  # events not written (level, fork, error)

#: Characters of a word that is known as a secret only when it is whole (a password in a URL).
LONGEST_WORD = 256

WRITER_PYTHON = 1
WRITER_C = 2

# --- progress page --------------------------------------------------------------------------------------------------
ROW_BYTES = 128
RANK_ROW = 0
HEARTBEAT_ROW = 1
FIRST_GROUP_ROW = 2
DEFAULT_GROUP_ROWS = 62

# Rank row: written by whichever thread changes phase or step.
R_VERSION = 0
R_STEP = 8  # current step, counted from 0; the number of completed optimizer steps
R_PHASE = 16
R_PHASE_SINCE_NS = 24
R_STEP_SINCE_NS = 32
R_LOSS = 40  # float64, last known; NaN is a value, see R_FLAGS
R_GRAD_NORM = 48  # float64
R_LOSS_STEP = 56  # step to which loss belongs
R_LEVEL = 64
R_HOOK_STATE = 72
R_COST_NS = 80  # own cost so far, estimated
R_CALLS = 88  # hook calls so far
R_EXIT_STATE = 96
R_FLAGS = 104  # StepFlag of the last step
R_MICROSTEPS = 112  # backward passes so far
R_SPARE = 120

# Heartbeat row: written only by the heartbeat thread.
B_VERSION = 0
B_TIME_NS = 8
B_BEATS = 16
B_GROUPS_DEFINED = 24
B_GROUPS_BLIND = 32  # groups without a row
B_HOOK_ERRORS = 40
B_PENDING = 48  # operations whose completion is being polled
B_FR_ENQUEUED = 56  # flight-recorder status of the default group, -1 as u64 when unknown
B_FR_COMPLETED = 64

# Group row: two halves of one cache line each, because they may have different writing threads.
G_VERSION = 0
G_ENQUEUED = 8  # number of collectives enqueued = sequence number of the last one (first is 1)
G_P2P_ENQUEUED = 16
G_ENQUEUE_NS = 24  # time of the last enqueue of either sort
G_SIGNATURE = 32  # pack_signature of the last enqueue
G_BYTES = 40
G_PEER = 48  # root or peer + 1; 0 = none
G_IN_USE = 56  # 1 once the group is defined; 2 destroyed
G_DONE_VERSION = 64
G_COMPLETED = 72  # highest sequence number known complete, all lower ones complete too
G_P2P_COMPLETED = 80
G_COMPLETE_NS = 88  # time of the last completion seen
G_STARTED = 96  # UNKNOWN_U64 where the backend cannot tell
G_OLDEST_OPEN_NS = 104  # enqueue time of the oldest open operation, 0 = none open
G_OPEN = 112  # operations open
G_STARTED_NS = 120  # time at which G_STARTED was seen to come so far; 0 never

UNKNOWN_U64 = (1 << 64) - 1

# --- events ---------------------------------------------------------------------------------------------------------
EVENT_BYTES = 64
DEFAULT_EVENT_SLOTS = 8192
#: begin, head word (kind u8 | op u8 | phase u8 | flags u8 | group u16 | dtype u16), seq, time_ns, value, step, extra,
#: end. All eight are u64. By kind:
#:   ENQUEUE   seq = sequence (collective or P2P of its group), value = bytes, step, extra = peer + 1 (0 = none)
#:   COMPLETE  seq = sequence, value = enqueue time_ns, step at enqueue, extra = time_ns since when the host stood in
#:             wait() for it (0 = it did not, or nobody knows)
#:   STARTED   like COMPLETE, extra = 0
#:   PHASE     phase = the new phase, seq = the phase that ended, value = time_ns at which that one began, step
#:   STEP      seq = the step that ended, value = loss as float64 bits, step = its begin time_ns,
#:             extra = gradient norm as float64 bits, flags = StepFlag, upper half of the head = run delay (below)
#:   LEVEL     value = new level, extra = HookState
#:   GROUP     group = row index of a newly defined group, value = size
#:   EXCEPTION value = length of text in the crash area (or whichever part fits)
#:   EXIT      value = ExitState
#:   HOOK_OFF  value = HookState
#:   MARK      free
#:   BAD_LOSS  value = the loss as float64 bits: the first of a step that is not finite, when it became known
#:   CHECKPOINT value = which one (hash of its path), extra = 1 written (by releases before), 2 read; phase and step
#:             are the rank's own
#:   SAVE      seq = number of the save, group = state, tier and way, extra = steps that it holds and KiB
#:             (``checkpoint_states``), value = which one where it begins, and of a part of it; else when it began
EVENT_STRUCT = struct.Struct("<8Q")
#: Of a CHECKPOINT event.
CHECKPOINT_WRITTEN, CHECKPOINT_READ = 1, 2
E_BEGIN, E_HEAD, E_SEQ, E_TIME_NS, E_VALUE, E_STEP, E_EXTRA, E_END = range(8)

#: A STEP event's run delay: 1 + microseconds for which the main thread was ready and had no CPU since the last such
#: reading; 0 = not read. A reading is a system call, so short steps share one.
RUN_DELAY_PERIOD_NS = 50_000_000

# --- definitions ----------------------------------------------------------------------------------------------------
#: u32 payload bytes, u16 DefinitionKind, u16 index; payload is UTF-8 JSON, padded to 8 bytes.
DEFINITION_HEAD = struct.Struct("<IHH")
DEFINITION_GROUP = 1  # {"name", "desc", "ranks": "0-3,7", "size", "backend", "ordinal", "timeout_s", "default": bool}
DEFINITION_ATTEMPT = 2  # {"token"}
DEFINITION_JOINING = 4  # {"timeout_s", "joined": bool, "time_ns"}: init_process_group was called, has returned
DEFINITION_CALL_SITE = 5  # {"file", "line", "function"} of the call sites' words with this index, from 1 on
DEFINITION_BAD_INPUT = 6  # {"step", "group": row, "seq", "p2p", "peer", "before"}: the step's first call fed a NaN
DEFINITION_NOTE = 3  # {"text"}: things said once, such as a hook that was disabled, and why
DEFAULT_DEFINITIONS_BYTES = 65536
DEFINITION_SAVE_FAILED = 7  # {"error"} of the save whose number ends with this index
#: {"request", "state", "reason", "time_ns", "seconds_left", "why", "step", "seconds", "missing", "error"}: what became
#: of an emergency save (``emergency_words``); the last six where they are known.
DEFINITION_EMERGENCY = 8
#: So much of the definitions is for call sites, beside what groups need.
CALL_SITE_BYTES = 24576

# --- crash area -----------------------------------------------------------------------------------------------------
# Exception: the first uncaught one; the main thread's replaces a worker thread's once (the version tells).
C_EXC_VERSION = 0
C_EXC_TIME_NS = 8
C_EXC_STEP = 16
C_EXC_TEXT_BYTES = 24
C_EXC_STACK_BYTES = 32
C_EXC_IN_MAIN = 40
C_EXC_TEXT = 64
C_EXC_TEXT_MAX = 4032  # "module.Type: message", UTF-8, truncated
C_EXC_STACK = 4096
C_EXC_STACK_MAX = 8192  # frames, innermost last: "file\tline\tfunction\n"
# Fatal signal: written by the C recorder's handler (async-signal-safe), zero otherwise.
C_SIG_NUMBER = 12288
C_SIG_TIME_NS = 12296
C_SIG_SENDER_PID = 12304
C_SIG_SENDER_UID = 12312
# Main-thread stack: taken by the heartbeat thread while a phase is stuck, or at a fatal signal (times then equal).
C_STACK_VERSION = 12352
C_STACK_TIME_NS = 12360
C_STACK_BYTES = 12368
C_STACK = 12416
C_STACK_MAX = 8192  # same format as the exception stack
CRASH_BYTES = 20608
# Call sites: which line issued each of the newest operations, of all groups together, behind the crash area and
# counted to it. Rings of earlier releases have none. A word each, stored whole: bits 0-13 the index of a definition
# (0: no line of the user's code is known), 14 point-to-point, 15-30 the group's row, 31-62 the low 32 bits of the
# number.
C_CALLS = CRASH_BYTES
CALLS = 4096  # a power of two: a host may have launched so many before anybody sees that one of them does not end
CALL_SITE_MASK = (1 << 14) - 1
CALL_SEQ_MASK = (1 << 32) - 1


def call_mark(row: int, seq: int, flags: int) -> int:
    """The word by which a ring notes an operation's line of code, but for the line's index.

    row: of its group; flags: of its ENQUEUE event.
    """
    return (seq & CALL_SEQ_MASK) << 31 | row << 15 | (flags & 1) << 14


def read_call_mark(mark: int) -> tuple[int, int, bool]:
    """(row, low 32 bits of the number, point-to-point) of a ``call_mark``."""
    return mark >> 15 & 0xFFFF, mark >> 31 & CALL_SEQ_MASK, bool(mark >> 14 & 1)


def pack_head(kind: int, op: int = 0, phase: int = 0, flags: int = 0, group: int = 0, dtype: int = 0) -> int:
    """Pack the small fields of an event into its head word."""
    return kind | op << 8 | phase << 16 | flags << 24 | group << 32 | dtype << 48


def pack_signature(op: int, flags: int, dtype: int) -> int:
    """Pack what must agree between members of a collective, besides its bytes, into one word."""
    return op | flags << 8 | dtype << 16


def cut_text(text: str, limit: int) -> str:
    """The text, cut to ``limit`` characters at most at a place between words: of half a secret nobody knows that it is
    one.

    Where one word is longer than ``LONGEST_WORD``, or than half of the limit, so many of its characters are left out.
    """
    if len(text) <= limit:
        return text
    floor = limit - min(LONGEST_WORD, limit // 2)
    return text[: max(floor, *(text.rfind(mark, floor, limit + 1) for mark in " \t\n,;&|"))]


def format_ranks(ranks: list[int]) -> str:
    """The ranks as ranges, sorted, each once: ``[0, 1, 2, 7] -> "0-2,7"``."""
    parts: list[str] = []
    first = last = None
    for rank in sorted(set(ranks)):
        if last is not None and rank == last + 1:
            last = rank
            continue
        if first is not None:
            parts.append(f"{first}" if first == last else f"{first}-{last}")
        first = last = rank
    if first is not None:
        parts.append(f"{first}" if first == last else f"{first}-{last}")
    return ",".join(parts)


def ranks_words(ranks: Iterable[int]) -> str:
    """``[2] -> "rank 2"``, ``[0, 1, 3] -> "ranks 0-1,3"``, ``[] -> "no rank"``."""
    members = sorted(set(ranks))
    if not members:
        return "no rank"
    return f"rank{'s' if len(members) > 1 else ''} {format_ranks(members)}"


def parse_ranks(text: str) -> list[int]:
    """The ranks in a text of ranges, the inverse of ``format_ranks``. Raises ValueError on anything else."""
    ranks: list[int] = []
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        ranks.extend(range(int(low), int(high or low) + 1))
    return ranks
