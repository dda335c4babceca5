"""Services and mounts without which a node's devices or jobs do not work: by systemd and /etc/fstab, once a minute.

A service that has failed is told, and one that ran and runs no more; one that never ran may be switched off on purpose.
Of fstab's mounts those of servers count that are to be there from the start.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ....telemetry.vocabulary import Action
from ..base.collector import Collected, NodeEvent, Timestamps
from ..base.kernel_files import list_names, read_text
from ..base.node_condition import NodeCondition, looks_anew
from ..storage.mount_table import is_of_a_server, mount_points

SOURCE = "services"
_ANSWER_S = 5.0
_FABRIC_MANAGER = "nvidia-fabricmanager.service"
#: What drivers, accounting, authentication and clocks of nodes run as.
UNITS = (
    _FABRIC_MANAGER, "nvidia-persistenced.service", "nvidia-dcgm.service", "dcgm.service", "openibd.service",
    "opensm.service", "slurmd.service", "munge.service", "kubelet.service", "containerd.service", "chrony.service",
    "chronyd.service", "ntpd.service", "ntpsec.service", "systemd-timesyncd.service", "sssd.service", "autofs.service",
)  # fmt: skip
_RUNS = frozenset({"active", "reloading", "activating", "refreshing"})
_MAX_ANSWER = 1 << 20
_MAX_WANTED = 128
#: A node with many containers has thousands of mounts.
_MAX_FILE_BYTES = 4 << 20


def ask_systemctl(units: Sequence[str]) -> str:
    """What ``systemctl show`` says of these units. Raises OSError, or subprocess.SubprocessError where it fails or
    takes longer than 5 s.
    """
    words = ["systemctl", "show", "--no-pager", "--property=Id,LoadState,ActiveState", "--", *units]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_S, check=True)
    return done.stdout[:_MAX_ANSWER].decode("utf-8", "replace")


def states_of(text: str) -> Iterator[tuple[str, str]]:
    """(unit, its state) of all units that there are, from what ``systemctl show`` says."""
    for block in text.split("\n\n"):
        said = dict(line.partition("=")[::2] for line in block.splitlines())
        if said.get("LoadState") == "loaded" and said.get("Id"):
            yield said["Id"], said.get("ActiveState", "")


class ServicesCollector:
    """root: of /etc and /proc. ask: systemd's words on units; None: that of this node, where it runs."""

    name = "services"

    def __init__(
        self, *, root: str | Path = "/", period_s: float = 60.0, ask: Callable[[Sequence[str]], str] | None = None
    ) -> None:
        self.period_s = period_s
        self._root, self._ask = Path(root), ask
        #: Units that ran at some look.
        self._ran: set[str] = set()
        self._told: dict[tuple[str, str], NodeCondition] = {}
        self._has_begun = False

    def collect(self, now: Timestamps) -> Collected:
        """What has begun or ended since the last look. A systemd that does not answer is a problem."""
        problems: list[str] = []
        standing = {(each.name, each.device): each for each in (*self._services(problems), *self._mounts())}
        told: list[NodeEvent] = []
        if not self._has_begun:
            self._has_begun = True
            told.append(looks_anew(SOURCE, now))
        told += [each.happening(SOURCE, now) for key, each in standing.items() if key not in self._told]
        for key, each in self._told.items():
            if key in standing:
                continue
            if problems and each.device_kind == "service":  # nobody knows whether it runs again
                standing[key] = each
            else:
                told.append(_over(each).happening(SOURCE, now))
        self._told = standing
        return Collected(happenings=told, problems=problems)

    def close(self) -> None:
        """Does nothing: nothing is kept open."""
        return

    def _services(self, problems: list[str]) -> Iterator[NodeCondition]:
        ask = self._ask or self._own()
        if ask is None:
            return
        try:
            states = dict(states_of(ask(UNITS)))
        except (OSError, subprocess.SubprocessError) as error:
            problems.append(f"systemctl show: {str(error)[:200]}")
            return
        for unit, state in states.items():
            if state in _RUNS:
                self._ran.add(unit)
            elif state == "failed" or unit in self._ran:
                yield _service(unit, state)

    def _own(self) -> Callable[[Sequence[str]], str] | None:
        has_systemd = "system" in list_names(self._root / "run/systemd")
        return ask_systemctl if has_systemd and shutil.which("systemctl") is not None else None

    def _mounts(self) -> Iterator[NodeCondition]:
        wanted = _wanted_mounts(read_text(self._root / "etc/fstab", _MAX_FILE_BYTES) or "")
        mounted = read_text(self._root / "proc/self/mountinfo", _MAX_FILE_BYTES)
        if not wanted or not mounted:
            return  # nobody can say what is missing
        there = mount_points(mounted)
        for path, source in wanted.items():
            if path not in there:
                yield NodeCondition(
                    name="mount_missing",
                    device=path,
                    device_kind="mount",
                    domain="storage",
                    action=Action.RESTART_WITHOUT_NODE,
                    text=f"{path} ({source}) is in fstab and not mounted",
                )


def _wanted_mounts(fstab: str) -> Mapping[str, str]:
    """By path the source of each file system of a server that is to be mounted from the start."""
    found: dict[str, str] = {}
    for line in fstab.splitlines():
        words = line.split()
        if len(words) < 4 or words[0].startswith("#") or len(found) >= _MAX_WANTED:
            continue
        options = set(words[3].split(","))
        is_later = options & {"noauto", "x-systemd.automount", "nofail"}
        if is_of_a_server(words[2]) and not is_later:
            found[os.path.normpath(words[1].replace("\\040", " "))] = words[0]
    return found


def _service(unit: str, state: str) -> NodeCondition:
    is_fabric = unit == _FABRIC_MANAGER
    return NodeCondition(
        name="fabric_manager_down" if is_fabric else "service_down",
        device=unit,
        device_kind="service",
        severity="error" if is_fabric else "warning",
        domain="host",
        action=Action.RESTART_WITHOUT_NODE if is_fabric else Action.DRAIN_AFTER_JOB,
        text=f"{unit} is {state or 'in no state'}; see journalctl -u {unit}",
    )


def _over(condition: NodeCondition) -> NodeCondition:
    return NodeCondition(
        name=condition.name,
        device=condition.device,
        device_kind=condition.device_kind,
        severity=condition.severity,
        domain=condition.domain,
        text=condition.text,
        is_over=True,
    )
