"""Which GPU a rank is on, where the driver does not say it: from what the rank's process was started with.

A rank takes the GPU number LOCAL_RANK among those that CUDA_VISIBLE_DEVICES leaves it, as every launcher's users write
it (``torch.cuda.set_device(local_rank)``); with a single one left, that one. CUDA's own rules decide what is left: the
list ends at its first word that is no device, and is empty where a device stands twice.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ....telemetry.whole_numbers import whole_number
from ...processes.processes import parse_stat
from .driver import Gpu

#: Of a process's environment nothing else is kept.
_VARIABLES = (
    *("RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
    *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
)
_MAX_ENVIRON_BYTES = 1 << 20
_EVERY_GPU = ("", "all")

CERTAIN = "certain"
LIKELY = "likely"
DOUBTFUL = "doubtful"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """A process that a launcher gave a local rank. ``start_ticks``: tells it from a later one of its pid."""

    pid: int
    start_ticks: int
    executable: str
    variables: Mapping[str, str]

    @property
    def local_rank(self) -> int:
        """The process's number among the ranks of this node, from LOCAL_RANK."""
        return int(self.variables["LOCAL_RANK"])

    @property
    def rank(self) -> int:
        """The global rank from RANK; -1 where that is not set or no number."""
        rank = whole_number(self.variables.get("RANK", ""))
        return -1 if rank is None else rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """mig: UUID of the instance, empty: the whole GPU. why: what speaks against it where it is doubtful."""

    gpu: Gpu
    mig: str
    method: str
    certainty: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Choice:
    gpu: Gpu
    mig: str = ""


class GpuRankProcesses:
    """The ranks that run now. A look lists /proc and opens what is new there and the ranks it knows."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        #: Looked into twice: a process has its launcher's environment for a moment, until it executes its program.
        self._known: set[int] = set()
        self._seen: set[int] = set()
        self._ranks: dict[int, RankProcess] = {}

    def look(self) -> Mapping[int, RankProcess]:
        """Running ranks by pid; empty where /proc cannot be listed."""
        try:
            pids = {int(name) for name in os.listdir(self._proc) if name.isdecimal()}
        except OSError:
            return {}
        for pid, rank in list(self._ranks.items()):
            if pid not in pids or self._started(pid) != rank.start_ticks:
                del self._ranks[pid]
                self._known.discard(pid)
        for pid in sorted(pids - self._known - self._ranks.keys()):
            new = read_rank_process(pid, self._proc)
            if new is not None and not self._is_helper(new):
                self._ranks[pid] = new
        self._known, self._seen = pids & self._seen, pids
        return self._ranks

    def _started(self, pid: int) -> int:
        with contextlib.suppress(OSError):
            stat = parse_stat((self._proc / str(pid) / "stat").read_bytes())
            return stat.start_ticks if stat is not None else -1
        return -1

    def _is_helper(self, process: RankProcess) -> bool:
        """A data loader's worker, say: of a rank's own kind, below it, with its variables."""
        with contextlib.suppress(OSError):
            stat = parse_stat((self._proc / str(process.pid) / "stat").read_bytes())
            parent = read_rank_process(stat.parent_pid, self._proc) if stat is not None else None
            return parent is not None and (parent.executable, parent.variables) == (
                process.executable,
                process.variables,
            )
        return False


def read_rank_process(pid: int, proc: Path = Path("/proc")) -> RankProcess | None:
    """The process with its start and the variables that a launcher set.

    None: it has no LOCAL_RANK, is gone, or is not ours to read.
    """
    folder = proc / str(pid)
    try:
        with open(folder / "environ", "rb") as file:
            raw = file.read(_MAX_ENVIRON_BYTES)
        if b"LOCAL_RANK=" not in raw:
            return None
        stat = parse_stat((folder / "stat").read_bytes())
    except OSError:
        return None
    variables = parse_environment(raw)
    if stat is None or whole_number(variables.get("LOCAL_RANK", "")) is None:
        return None
    executable = ""
    with contextlib.suppress(OSError):
        executable = os.readlink(folder / "exe")
    return RankProcess(pid=pid, start_ticks=stat.start_ticks, executable=executable, variables=variables)


def parse_environment(raw: bytes) -> dict[str, str]:
    """Those of ``_VARIABLES`` that are set in a /proc/PID/environ; the first of a name counts, as for getenv.

    Values end after 4096 bytes.
    """
    found: dict[str, str] = {}
    for item in raw.split(b"\0"):
        name, separator, value = item.partition(b"=")
        key = name.decode("ascii", "replace")
        if separator and key in _VARIABLES:
            found.setdefault(key, value[:4096].decode("utf-8", "replace"))
    return found


def place_rank(process: RankProcess, gpus: Sequence[Gpu]) -> Placement | None:
    """The GPU that a rank uses by its environment alone, with how sure that is and what speaks against it.

    None: it sees no GPU, or fewer than its local rank asks for. gpus: of this node, by index.
    """
    variables = process.variables
    doubts: list[str] = []
    granted = _granted(variables.get("NVIDIA_VISIBLE_DEVICES"), gpus)
    if granted is None:
        return None
    if len(granted) < len(gpus):
        doubts.append("counted among the GPUs of its container")
    chosen = variables.get("CUDA_VISIBLE_DEVICES")
    visible = [_Choice(gpu) for gpu in granted] if chosen is None else visible_devices(chosen, granted)
    at = 0 if len(visible) == 1 else process.local_rank
    if at >= len(visible):
        return None
    by_name = chosen is not None and chosen.strip().startswith(("GPU-", "MIG-"))
    if by_name:
        doubts.clear()
    elif variables.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len({gpu.model for gpu in granted}) > 1:
        doubts.append("CUDA counts the fastest first, and the GPUs differ")
    if chosen is None:
        doubts.append("CUDA_VISIBLE_DEVICES is not set")
    choice = visible[at]
    return Placement(
        gpu=choice.gpu,
        mig=choice.mig,
        method="local_rank" if chosen is None else "cuda_visible_devices",
        certainty=DOUBTFUL if doubts else LIKELY,
        why="; ".join(doubts),
    )


def visible_devices(text: str, gpus: Sequence[Gpu]) -> list[_Choice]:
    """The devices that CUDA makes of a CUDA_VISIBLE_DEVICES text, in its order.

    The text holds numbers, or UUIDs (also shortened) of GPUs or MIG instances. Empty where CUDA takes none: one named
    twice.
    """
    words = [word.strip() for word in text.split(",")]
    if words[0].startswith("MIG-"):
        # CUDA uses one instance at most.
        return list(_named(words[:1], gpus))
    found = list(_named(words, gpus) if words[0].startswith("GPU-") else _numbered(words, gpus))
    return [] if len(set(map(id, (choice.gpu for choice in found)))) < len(found) else found


def _numbered(words: Sequence[str], gpus: Sequence[Gpu]) -> Iterator[_Choice]:
    """As strtoul reads them: "2x" is 2; a negative one, or none at all, ends the list."""
    for word in words:
        match = re.match(r"[+]?(\d{1,9})", word)
        if match is None or int(match[1]) >= len(gpus):
            return
        yield _Choice(gpus[int(match[1])])


def _named(words: Sequence[str], gpus: Sequence[Gpu]) -> Iterator[_Choice]:
    for word in words:
        if not word.startswith(("GPU-", "MIG-")):
            return
        whole = [_Choice(gpu) for gpu in gpus if gpu.uuid.startswith(word)]
        parts = [_Choice(gpu, device.uuid) for gpu in gpus for device in gpu.mig if device.uuid.startswith(word)]
        parts += [choice for gpu in gpus for choice in _old_mig_name(word, gpu)]
        matches = whole + parts
        if len(matches) != 1:
            return
        yield matches[0]


def _old_mig_name(word: str, gpu: Gpu) -> Iterator[_Choice]:
    """ "MIG-GPU-…/1/0": GPU, its instance, the compute instance; so named before driver 470."""
    match = re.fullmatch(r"MIG-(GPU-[0-9a-f-]+)/(\d{1,3})/(\d{1,3})", word)
    if match and gpu.uuid == match[1]:
        uuid = gpu.mig_uuid(int(match[2]), int(match[3]))
        if uuid:
            yield _Choice(gpu, uuid)


def _granted(text: str | None, gpus: Sequence[Gpu]) -> list[Gpu] | None:
    """What the container runtime was told to let in; None: nothing."""
    if text is None or text in _EVERY_GPU:
        return list(gpus)
    if text in ("none", "void"):
        return None
    words = [word.strip() for word in text.split(",")]
    found = {
        gpu.index
        for word in words
        for at, gpu in enumerate(gpus)
        if word == str(at) or (word.startswith("GPU-") and gpu.uuid == word)
    }
    # Words of other runtimes (device names, MIG instances) say nothing about whole GPUs.
    return [gpu for gpu in gpus if gpu.index in found] if found else list(gpus)
