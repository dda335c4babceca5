"""Software and firmware of this node and of its jobs; what differs from the look before is a change.

Runs in a process of its own, because it reads files of ranks' folders, which may lie on a dead mount. What was seen is
remembered in a small file, so that an update that came with a reboot is a change too. A first look is a baseline.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ....diagnosis.installed_software import nvidia_driver, os_release
from ....telemetry.ring_layout import cut_text
from ....telemetry.vocabulary import EventName
from ...user_files.user_files import end_helpers
from ..base.collector import Collected, NodeEvent, Timestamps
from ..base.kernel_files import list_names, read_text
from .rank_environments import RankEnvironment, RankEnvironments
from .rank_software import rank_software

#: Kernel modules whose release matters to a job, where they say it.
_MODULES = (
    *("bnxt_en", "bnxt_re", "efa", "ib_core", "ice", "irdma", "mlx5_core", "mlx5_ib"),
    *("gdrdrv", "knem", "nvidia_fs", "nvidia_peermem", "xpmem"),
    *("beegfs", "lustre", "mmfslinux", "wekafsio"),
)
_MAX_STATE_BYTES = 1 << 20
#: Jobs come and go; the oldest of what is remembered goes first.
_MAX_REMEMBERED = 2048
#: A rank loads its libraries in its first minutes; after so many looks nothing new is expected.
_RANK_LOOKS = 10
#: What `whichrank run` puts behind a job's name: another one at each launch.
_LAUNCH = re.compile(r"-[0-9a-f]{8}$")


@dataclass(frozen=True, slots=True)
class Version:
    """what: "kernel", "nvidia_driver", "nccl" ... where: a device, or a job; "" the node."""

    what: str
    value: str
    where: str = ""

    @property
    def key(self) -> str:
        """The text by which the same software or firmware is found again at the next look: ``what`` and ``where``."""
        return f"{self.what}\t{self.where}"


class VersionsCollector:
    """``state_file``: "" remembers nothing over restarts."""

    name = "versions"

    def __init__(
        self,
        *,
        proc: str | Path = "/proc",
        sys: str | Path = "/sys",
        etc: str | Path = "/etc",
        state_file: str = "",
        period_s: float = 30.0,
    ) -> None:
        self.period_s = period_s
        self._proc = Path(proc)
        self._sys = Path(sys)
        self._etc = Path(etc)
        self._state_file = state_file
        self._ranks = RankEnvironments(self._proc)
        #: pid -> (looks, what was found): a rank's maps are long, and do not change once it trains.
        self._looked: dict[int, tuple[int, dict[str, str]]] = {}
        self._seen: dict[str, str] | None = None
        #: Of these only the last process of this agent knew: they may have changed while nobody looked.
        self._from_file: set[str] = set()

    def collect(self, now: Timestamps) -> Collected:
        """An event for each version that differs from the last look, also from one before a restart."""
        problems: list[str] = []
        if self._seen is None:
            self._seen = self._load(problems)
            self._from_file = set(self._seen)
        seen, happenings, touched = self._seen, [], False
        for version in self._versions():
            old = seen.get(version.key)
            if old != version.value:
                happenings.append(self._change(version, old, now))
                seen.pop(version.key, None)  # so that the newest stands last
                seen[version.key] = version.value
                touched = True
            self._from_file.discard(version.key)
        while len(seen) > _MAX_REMEMBERED:
            del seen[next(iter(seen))]
        if touched:
            self._save(seen, problems)
        end_helpers()  # a process of its own, which sleeps for a while now
        return Collected(happenings=happenings, problems=problems)

    def close(self) -> None:
        """Does nothing: nothing is kept open."""
        return

    def _change(self, version: Version, old: str | None, now: Timestamps) -> NodeEvent:
        return NodeEvent(
            name=EventName.CHANGE,
            time_ns=now.wall_ns,
            mono_ns=now.mono_ns,
            attributes={
                "what": version.what,
                "old": old or "",
                "new": version.value,
                "where": version.where,
                "baseline": old is None,
                "while_away": version.key in self._from_file,
            },
        )

    def _versions(self) -> Iterator[Version]:
        """Each key once."""
        yield from self._of_node()
        by_job: dict[tuple[str, str], set[str]] = {}
        for job, found in self._of_ranks():
            for what, value in found.items():
                by_job.setdefault((what, job), set()).add(value)
        for (what, job), values in by_job.items():
            # Ranks of one job that differ are a skew, which is told as one value.
            yield Version(what, " | ".join(sorted(values)[:8]), job)

    def _of_node(self) -> Iterator[Version]:
        release = os_release(read_text(self._etc / "os-release") or "")
        image = [release.get(key, "") for key in ("PRETTY_NAME", "IMAGE_ID", "IMAGE_VERSION", "BUILD_ID")]
        found = {
            "image": " ".join(part for part in image if part),
            "kernel": read_text(self._proc / "sys/kernel/osrelease") or "",
            "nvidia_driver": nvidia_driver(read_text(self._proc / "driver/nvidia/version") or ""),
            "bios": read_text(self._sys / "class/dmi/id/bios_version") or "",
        }
        command_line = read_text(self._proc / "cmdline")
        if command_line:  # told as a hash: it may hold what is nobody's business
            found["kernel_command_line"] = hashlib.sha256(command_line.encode()).hexdigest()[:16]
        for module in _MODULES:
            found[f"module {module}"] = read_text(self._sys / "module" / module / "version") or ""
        for what, value in found.items():
            if value:
                yield Version(what, cut_text(value, 200))
        for device in list_names(self._sys / "class/infiniband")[:64]:
            firmware = read_text(self._sys / "class/infiniband" / device / "fw_ver")
            if firmware:
                yield Version("nic_firmware", firmware[:200], device)

    def _of_ranks(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """(job, what -> version) of each rank that runs now."""
        ranks = self._ranks.look()
        looked = {}
        for rank in ranks:
            looks, found = self._looked.get(rank.pid, (0, {}))
            if looks < _RANK_LOOKS:
                # What is checked out may change while the rank runs on with what it loaded.
                code = {"code": found["code"]} if "code" in found else {}
                found = {**found, **rank_software(self._proc, rank), **code}
                looks += 1
            looked[rank.pid] = looks, found
            yield job_of(rank), found
        self._looked = looked

    # --- what was seen before ---------------------------------------------------------------------------------------

    def _load(self, problems: list[str]) -> dict[str, str]:
        text = read_text(self._state_file, _MAX_STATE_BYTES) if self._state_file else None
        if text is None:
            return {}
        try:
            seen = json.loads(text)["seen"]
            return {key: value for key, value in seen.items() if isinstance(key, str) and isinstance(value, str)}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            problems.append(
                f"{self._state_file}: not what this agent wrote; versions are seen as if for the first time"
            )
            return {}

    def _save(self, seen: Mapping[str, str], problems: list[str]) -> None:
        if not self._state_file:
            return
        new = f"{self._state_file}.new"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(new, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump({"schema": 1, "seen": seen}, file)
            os.replace(new, self._state_file)
        except OSError as error:
            problems.append(f"{self._state_file}: {error.strerror}; changes over a restart will not be seen")


def job_of(rank: RankEnvironment) -> str:
    """A name of the rank's training, from its environment, that stays over attempts and requeues.

    Of two jobs, two names; without any variable "pid N".
    """
    environ = rank.environ
    for key in ("SLURM_JOB_NAME", "JOB_NAME", "WHICHRANK_RUN_ID", "WHICHRANK_JOB_ID", "TORCHELASTIC_RUN_ID"):
        name = _LAUNCH.sub("", environ.get(key, "").strip())
        if name and name != "none":
            owner = environ.get("SLURM_JOB_USER", "") if key == "SLURM_JOB_NAME" else ""
            return f"{owner}/{name}" if owner else name
    return environ.get("SLURM_JOB_ID", "") or f"pid {rank.pid}"
