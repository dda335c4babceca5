"""/proc/meminfo and /proc/vmstat -> values of metrics. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

#: (metric, value, attributes)
Value = tuple[str, float, dict[str, str]]

#: /proc/meminfo -> states that make up the whole, with "used" for the rest.
_STATES = {"MemFree": "free", "Buffers": "buffers", "Cached": "cached"}
#: The same -> kinds that lie across those states.
_KINDS = {
    "AnonPages": "anonymous",
    "Dirty": "dirty",
    "Writeback": "writeback",
    "PageTables": "page_tables",
    "Unevictable": "unevictable",
}
_SLAB = {"SReclaimable": "reclaimable", "SUnreclaim": "unreclaimable"}
_KB = 1024


def memory_values(numbers: Mapping[str, int]) -> Iterator[Value]:
    """Values of memory metrics as (metric, bytes, labels).

    numbers: of /proc/meminfo, in kB as they stand there; MemTotal must be among them.
    """
    whole = numbers["MemTotal"]
    yield "system.memory.limit", whole * _KB, {}
    states = {state: numbers.get(key, 0) for key, state in _STATES.items()}
    states["cached"] += numbers.get("SReclaimable", 0)
    states["used"] = max(whole - sum(states.values()), 0)
    for state, kilobytes in states.items():
        yield "system.memory.usage", kilobytes * _KB, {"system.memory.state": state}
    for key, kind in _KINDS.items():
        if key in numbers:
            yield "whichrank.memory.usage", numbers[key] * _KB, {"whichrank.kind": kind}
    for key, state in _SLAB.items():
        if key in numbers:
            yield "system.memory.linux.slab.usage", numbers[key] * _KB, {"linux.memory.slab.state": state}
    if "Shmem" in numbers:
        yield "system.memory.linux.shared", numbers["Shmem"] * _KB, {}
    if "MemAvailable" in numbers:
        yield "system.memory.linux.available", numbers["MemAvailable"] * _KB, {}
        if whole > 0:
            yield "whichrank.memory.available.share", numbers["MemAvailable"] / whole, {}
    if "SwapTotal" in numbers and "SwapFree" in numbers:
        swap, free = numbers["SwapTotal"], numbers["SwapFree"]
        yield "system.paging.usage", (swap - free) * _KB, {"system.paging.state": "used"}
        yield "system.paging.usage", free * _KB, {"system.paging.state": "free"}
        if swap > 0:
            yield "system.paging.utilization", (swap - free) / swap, {"system.paging.state": "used"}
    pages = numbers.get("HugePages_Total", 0)
    if pages:
        used = {"system.memory.linux.hugepages.state": "used"}
        yield "system.memory.linux.hugepages.limit", pages, {}
        yield "system.memory.linux.hugepages.page_size", numbers.get("Hugepagesize", 0) * _KB, {}
        yield "system.memory.linux.hugepages.usage", pages - numbers.get("HugePages_Free", 0), used


def paging_values(numbers: Mapping[str, int]) -> Iterator[Value]:
    """Values of paging metrics as (metric, count, labels): swapped pages, major faults, OOM kills, reclaim stalls.

    numbers: of /proc/vmstat; a metric whose number is absent is left out.
    """
    for key, direction in (("pswpin", "in"), ("pswpout", "out")):
        if key in numbers:
            yield "system.paging.operations", numbers[key], {"system.paging.direction": direction}
    if "pgmajfault" in numbers:
        yield "system.paging.faults", numbers["pgmajfault"], {"system.paging.fault.type": "major"}
    if "oom_kill" in numbers:
        yield "whichrank.memory.oom_kills", numbers["oom_kill"], {}
    # One number per zone of memory.
    stalls = [value for key, value in numbers.items() if key == "allocstall" or key.startswith("allocstall_")]
    if stalls:
        yield "whichrank.memory.reclaim_stalls", sum(stalls), {}
