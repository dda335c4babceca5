"""Ranks of jobs by their environment, found in /proc: for collectors in processes of their own, which hear of no ring.

Only variables that say where a rank belongs are kept; all others (among them people's keys and tokens) are dropped as
they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ...base.turns import in_turns
from ..base.kernel_files import list_names, read_bytes

_MAX_ENVIRONMENT_BYTES = 256 << 10
_MAX_RANKS = 1024
_MAX_HELPERS = 4
#: By name, and no prefixes: SLURM_JWT, or a password in a variable of our own, would be caught by one.
_KEPT = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "WHICHRANK_RUN_ID",
        "WHICHRANK_JOB_ID",
        "SLURM_JOB_ID",
        "SLURM_JOBID",
        "SLURM_JOB_NAME",
        "SLURM_JOB_USER",
        "SLURM_JOB_END_TIME",
        "SLURM_RESTART_COUNT",
        "SLURM_PROCID",
        "SLURM_CONTAINER",
        "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image",
        "SLURMD_NODENAME",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "RAY_JOB_ID",
        "RAY_NODE_ID",
        "JOB_NAME",
        "NVIDIA_BUILD_ID",
        "SINGULARITY_CONTAINER",
        "APPTAINER_CONTAINER",
        "CONTAINER_IMAGE",
        "IMAGE_TAG",
    }
)
#: A process just made still has its parent's variables until it becomes its own program; so it is read twice.
_LOOKS = 2


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """helpers: its children that inherit its place; where the rank is a shell, one of them is the program."""

    pid: int
    environ: Mapping[str, str]
    helpers: tuple[int, ...] = ()

    @property
    def program(self) -> int:
        """The process that trains, as far as that can be told: a shell's only child, else itself."""
        return self.helpers[0] if len(self.helpers) == 1 else self.pid


@dataclass(slots=True)
class _Known:
    start_ticks: bytes
    looks: int
    parent_pid: int
    environ: Mapping[str, str]


class RankEnvironments:
    """Not for several threads. A look costs some 20 µs for each process of the node."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._known: dict[int, _Known] = {}

    def look(self) -> list[RankEnvironment]:
        """Ranks that run now, by pid; their helpers, which inherit their variables, are left out."""
        known: dict[int, _Known] = {}
        for name in list_names(self._proc):
            if not name.isdecimal():
                continue
            # The command's name may hold spaces and brackets, so fields start after the last ')'.
            stat = read_bytes(f"{self._proc}/{name}/stat")
            fields = stat[stat.rfind(b")") + 2 :].split() if stat else []
            if len(fields) < 20 or not fields[1].isdigit():
                continue
            pid = int(name)
            before = self._known.get(pid)
            if before is None or before.start_ticks != fields[19]:
                before = _Known(fields[19], 0, 0, {})
            before.parent_pid = int(fields[1])
            if not before.environ and before.looks < _LOOKS:
                before.looks += 1
                before.environ = self._environ(name)
            known[pid] = before
        self._known = known
        helpers: dict[int, list[int]] = {}
        ranks = []
        for pid, one in sorted(known.items()):
            if not one.environ:
                continue
            parent = known.get(one.parent_pid)
            if parent is not None and _place(parent.environ) == _place(one.environ):
                helpers.setdefault(one.parent_pid, []).append(pid)
            else:
                ranks.append(pid)
        if len(ranks) > _MAX_RANKS:
            ranks = sorted(islice(in_turns((self.uid_of(pid), pid) for pid in ranks), _MAX_RANKS))
        return [RankEnvironment(pid, known[pid].environ, tuple(helpers.get(pid, [])[:_MAX_HELPERS])) for pid in ranks]

    def uid_of(self, pid: int) -> int | None:
        """Effective uid of a process; None if it is gone."""
        for line in (read_bytes(f"{self._proc}/{pid}/status", 8192) or b"").splitlines():
            if line.startswith(b"Uid:"):
                return int(line.split()[2])
        return None

    def _environ(self, pid: str) -> Mapping[str, str]:
        """{} of a process that is no rank, or whose environment may not be read."""
        raw = read_bytes(f"{self._proc}/{pid}/environ", _MAX_ENVIRONMENT_BYTES)
        if not raw or not (b"RANK=" in raw or b"SLURM_PROCID=" in raw):
            return {}
        found: dict[str, str] = {}
        for item in raw.split(b"\0"):
            key, equals, value = item.decode("utf-8", "replace").partition("=")
            if equals and key in _KEPT:
                found[key] = value[:1000]
        return found if "RANK" in found or "SLURM_PROCID" in found else {}


def _place(environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    return environ.get("RANK"), environ.get("SLURM_PROCID")
