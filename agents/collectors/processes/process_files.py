"""A process in numbers, from its files in /proc. What may not be read is None; a process that is gone is None."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..base.small_files import keyed_numbers, listed, read_text, whole_number

TICKS_PER_S = os.sysconf("SC_CLK_TCK") or 100
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Threads of one process that are looked at.
_MOST_THREADS = 512
_MOST_FRAMES = 24
#: "[<0>] rpc_wait_bit_killable+0x1d/0x80 [sunrpc]"; older kernels show an address between the brackets.
_FRAME = re.compile(r"\[<[0-9a-fx]{1,18}>\] (?P<function>[\w.]{1,128})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessNumbers:
    """One line of /proc/PID/stat."""

    name: str
    state: str  # the kernel's letter
    parent_pid: int
    start_ticks: int
    threads: int
    resident_bytes: int
    major_faults: int
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIo:
    read_bytes: int  # from block devices
    written_bytes: int
    got_bytes: int  # by read calls, from wherever


def parse_process(text: str) -> ProcessNumbers | None:
    """The numbers of a /proc/PID/stat; None where it is not of the known form.

    The name may hold spaces and brackets: fields start after the last ')'.
    """
    begin, end = text.find("("), text.rfind(")")
    fields = text[end + 1 :].split()
    if begin < 0 or end < begin or len(fields) < 22 or len(fields[0]) != 1:
        return None
    found = [whole_number(fields[place]) for place in (1, 9, 11, 12, 17, 19, 21)]
    numbers = [number for number in found if number is not None]
    if len(numbers) < len(found):
        return None
    parent_pid, faults, user_ticks, system_ticks, threads, start_ticks, pages = numbers
    return ProcessNumbers(
        name=text[begin + 1 : end],
        state=fields[0],
        parent_pid=parent_pid,
        start_ticks=start_ticks,
        threads=threads,
        resident_bytes=pages * _PAGE_BYTES,
        major_faults=faults,
        cpu_s=(user_ticks + system_ticks) / TICKS_PER_S,
    )


def read_process(proc: Path, pid: int) -> ProcessNumbers | None:
    """The numbers in /proc/PID/stat; None where the process is gone or the file is not of the known form."""
    text = read_text(f"{proc}/{pid}/stat", 4096)
    return parse_process(text) if text is not None else None


def read_io(proc: Path, pid: int) -> ProcessIo | None:
    """Bytes read and written, from /proc/PID/io, which only the owner may read; None where it cannot be had."""
    numbers = keyed_numbers(read_text(f"{proc}/{pid}/io", 4096) or "")
    try:
        return ProcessIo(
            read_bytes=numbers["read_bytes"], written_bytes=numbers["write_bytes"], got_bytes=numbers["rchar"]
        )
    except KeyError:
        return None


def count_files(proc: Path, pid: int) -> int | None:
    """The number of files that a process has open; None where that may not be read.

    The kernel tells it as the folder's size since 6.2; before, they are counted.
    """
    folder = f"{proc}/{pid}/fd"
    try:
        return os.stat(folder).st_size or len(os.listdir(folder))
    except OSError:
        return None


def read_run_delay_s(proc: Path, pid: int) -> float | None:
    """Seconds in which the main thread wanted to run and had no core; None where the kernel does not measure it."""
    words = (read_text(f"{proc}/{pid}/schedstat", 256) or "").split()
    numbers = [whole_number(word) for word in words[:2]]
    if len(numbers) < 2 or numbers[0] is None or numbers[1] is None or not any(numbers):
        return None
    return numbers[1] / 1e9


def read_switches(proc: Path, pid: int, thread: int = 0) -> dict[str, int]:
    """Counts of ``voluntary`` and ``involuntary`` context switches of one thread; thread 0: the main one.

    A count that cannot be read is left out.
    """
    folder = f"{proc}/{pid}/task/{thread}" if thread else f"{proc}/{pid}"
    numbers = keyed_numbers(read_text(f"{folder}/status", 8192) or "")
    kinds = {"voluntary": "voluntary_ctxt_switches", "involuntary": "nonvoluntary_ctxt_switches"}
    return {kind: numbers[key] for kind, key in kinds.items() if key in numbers}


def blocked_threads(proc: Path, pid: int) -> Iterator[int]:
    """Ids of the process's threads in state D (uninterruptible wait), at most ``_MOST_THREADS`` looked at."""
    for name in listed(f"{proc}/{pid}/task", most=_MOST_THREADS):
        text = read_text(f"{proc}/{pid}/task/{name}/stat", 1024)
        if text is not None and text[text.rfind(")") + 1 :][:3] == " D ":
            thread = whole_number(name)
            if thread is not None:
                yield thread


def thread_name(proc: Path, pid: int, thread: int) -> str:
    """The name of a thread from its comm file, "" where it is gone."""
    return (read_text(f"{proc}/{pid}/task/{thread}/comm", 64) or "").strip()


def kernel_functions(proc: Path, pid: int, thread: int) -> tuple[str, ...]:
    """Functions of the kernel that the thread is in, innermost first: its stack (for root only), else that of wchan.

    Empty where it is in none, or that is not told.
    """
    stack = read_text(f"{proc}/{pid}/task/{thread}/stack", 8192) or ""
    functions = tuple(match["function"] for match in _FRAME.finditer(stack))[:_MOST_FRAMES]
    if functions:
        return functions
    where = (read_text(f"{proc}/{pid}/task/{thread}/wchan", 256) or "").strip()
    return (where[:128],) if where not in ("", "0") and where.isprintable() else ()
