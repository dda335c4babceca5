"""The mounts of a node, and the agent's looks at them: a probe that does not come back is out, and is told as late."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..agents.collectors.base.collector import NodeEvent, Timestamps
from ..agents.collectors.storage.mount_table import Mount
from ..agents.collectors.storage.storage_collector import late_probe, probe_age
from ..telemetry.records import Point
from .clock import ns
from .cluster_topology import STORAGE

_PROBE_EVERY_S, _LATE_S = 10.0, 3.0


def _nfs(path: str, device: str, server: str) -> Mount:
    source = f"{server}:/export{path}"
    return Mount(
        path=path, device=device, fstype="nfs4", source=source, server=server, read_only=False, is_network=True
    )


#: By the parameter of a host that says whether it answers there. Jobs read and write the first one only.
MOUNTS = {"mount": _nfs("/data", "0:51", STORAGE), "home_mount": _nfs("/home", "0:52", "nas-2")}


@dataclass(kw_only=True)
class SimulatedMountProbe:
    """The agent's probe of one mount. asked_s: when the last one went out; out_s: when one did that has not come back,
    else inf.
    """

    mount: Mount
    asked_s: float = 0.0
    out_s: float = np.inf

    def look(self, at_s: float, now: Timestamps, *, answers: bool) -> tuple[Point, list[NodeEvent]]:
        """A probe every ten seconds: the point of its age, and an event while one is out for _LATE_S or more.

        answers: whether the mount does, at ``at_s`` (seconds of the simulation).
        """
        if np.isfinite(self.out_s) and answers:
            self.out_s = np.inf
        elif not np.isfinite(self.out_s) and at_s - self.asked_s >= _PROBE_EVERY_S:
            self.asked_s = at_s
            if not answers:
                self.out_s = at_s
        age_s = at_s - self.out_s if np.isfinite(self.out_s) else 0.0
        age_ns = ns(age_s) if age_s >= _LATE_S else 0
        late = [late_probe(self.mount, "stat", age_ns, now)] if age_ns else []
        return probe_age(self.mount, age_ns, now), late
