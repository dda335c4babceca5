"""Whose memory it was: a GPU that was full before this process asked is no matter of the batch size.

An allocator's message has the sizes: what is neither free nor this process's is held by others. A driver's has none,
but before the first step, where a context is made or a library is set up, hardly anything of this process is there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .model import TracebackFrame

UNITS = {"b": 1, "bytes": 1, "k": 1 << 10, "kib": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "mb": 1 << 20,
         "g": 1 << 30, "gib": 1 << 30, "gb": 1 << 30, "t": 1 << 40, "tib": 1 << 40}  # fmt: skip
SIZE = r"(?P<{}>[\d.]+) ?(?P<{}_unit>[KMGT]i?B|bytes|B)"
TOTAL = re.compile(
    SIZE.format("total", "total") + r" total capacity|total (?:capacity|memory) of " + SIZE.format("of", "of")
)
FREE = re.compile(SIZE.format("free", "free") + r" (?:is )?free")
OWN = re.compile(
    r"this process has "
    + SIZE.format("own", "own")
    + r"|"
    + SIZE.format("reserved", "reserved")
    + r" reserved in total|"
    + SIZE.format("allocated", "allocated")
    + r" already allocated"
)
#: In a container the driver knows a process by another number than it does itself: it is one of "Process 81123 has ..."
#: then, and what the allocator counts is all that is known to be its own.
OF_THE_ALLOCATOR = re.compile(
    SIZE.format("in_use", "in_use")
    + r" is allocated by PyTorch(?:,? and "
    + SIZE.format("kept", "kept")
    + r" is reserved)?"
)
OTHER = re.compile(r"\b[Pp]rocess \d+ has " + SIZE.format("other", "other") + r" memory in use")
ASKED = re.compile(r"[Tt]r(?:ied|ying) to allocate " + SIZE.format("asked", "asked"))
#: Of start-up: what vLLM finds free on a device that it has not used yet.
AT_START = re.compile(r"[Ff]ree memory on device.{0,80}\bon startup\b|\bon startup is less than desired")
#: A context and its libraries, that no allocator counts.
CONTEXT_BYTES = 3 << 30
#: Held by others: this share of the device, or more than half of what is used.
SHARE = 0.25
DRIVER_SAYS = re.compile(
    r"CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|HIP error: out of memory|"
    r"hipErrorOutOfMemory|Cuda failure (?:2 )?'out of memory'"
)
#: Where contexts are made: nothing of a model is on the device yet.
SETTING_UP = re.compile(
    r"^(?:_lazy_init|set_device|init_process_group|_cuda_init|mem_get_info|empty_cache|manual_seed(?:_all)?|synchronize|"
    r"current_stream|get_device_properties|init_device|setup_distributed|init_distributed|_init_distributed|initialize_distributed|"
    r"set_rng_state|get_rng_state|_set_cuda_rng_state|seed_everything|set_seed|fork_rng|current_device|device_count|"
    r"_initialize_distributed|warmup_nccl|barrier)$"
)


#: The same in a source line: calls before which nothing can be on the device, and the first small tensor of a probe.
FIRST_CALL = re.compile(
    r"\b(?:set_device|init_process_group|barrier|init_device_mesh|init_distributed|initialize_distributed|set_seed|"
    r"manual_seed(?:_all)?|empty_cache|mem_get_info|get_device_properties|init_deepspeed|PartialState|Accelerator)\(|"
    r"\b(?:zeros|ones|empty|rand|tensor)\(\[?1?[.\d]{0,3}\]?[,)].{0,40}(?:cuda|device|hpu|xpu|npu)"
)


def is_held_by_others(text: str, frames: Sequence[TracebackFrame], *, has_trained: bool) -> bool:
    """Whether other processes are to blame that the GPU's memory was too small, by the sizes in the statement.

    frames: of its stack, () none; has_trained: the job had made a step before.
    """
    if AT_START.search(text):
        return True
    total, free = _size(TOTAL, text), _size(FREE, text)
    own = _size(OWN, text)
    others = sum(_bytes(match["other"], match["other_unit"]) for match in OTHER.finditer(text))
    if own is None and free is not None and (counted := OF_THE_ALLOCATOR.search(text)):
        own = sum(_bytes(counted[name] or "0", counted[f"{name}_unit"] or "b") for name in ("in_use", "kept"))
        others = 0.0
    if total:
        if not others and free is not None and own is not None:
            named = "this process has" in text
            others = total - free - own - (0 if named else CONTEXT_BYTES)
        return others >= SHARE * total and others > (own or 0) / 2
    if has_trained or not DRIVER_SAYS.search(text):
        return False
    return any(
        SETTING_UP.match(frame.function.split(".")[-1]) or FIRST_CALL.search(frame.code) for frame in frames[-6:]
    )


def _size(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    if match is None:
        return None
    found = {name: value for name, value in match.groupdict().items() if value}
    name = next(name for name in found if not name.endswith("_unit"))
    return _bytes(found[name], found[f"{name}_unit"])


def _bytes(number: str, unit: str) -> float:
    try:
        return float(number) * UNITS[unit.lower()]
    except ValueError:
        return 0.0
