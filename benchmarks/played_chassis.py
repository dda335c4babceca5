"""The rest of a node for ``agent_cost``: a simulated BMC behind the real ipmitool, a Kubernetes node, a site's checks.

Made by the process that measures, so that what it costs to play them is not counted as the agent's; what the agent
starts (``ipmitool``, the checks) is.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from tests.agents.collectors.simulated_bmc import HAS_TOOLS, simulated_bmc

#: Asked of the real one in place of the kernel's interface, which is not here.
_IPMITOOL = '#!/bin/sh\nexec {real} -I lan -H 127.0.0.1 -p {port} -U admin -P test "$@"\n'
_CHECKS = """\
[[check]]
name = "scratch"
command = ["/bin/sh", "-c", "df -P / > /dev/null"]
period_s = 60
[[check]]
name = "clock"
command = ["/bin/true"]
period_s = 30
"""
_NODE = {
    "kind": "Node",
    "metadata": {"name": "load", "labels": {"topology.kubernetes.io/zone": "a"}},
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "KernelDeadlock", "status": "False"}]},
}


@contextlib.contextmanager
def played_chassis(folder: Path) -> Iterator[dict[str, str]]:
    """Makes the node below ``folder``. The result: variables for the agent's process (PATH); files lie where
    ``site_checks``, ``kubernetes_node`` and ``topology`` below say.
    """
    folder.mkdir()
    (folder / "dev").mkdir()
    site_checks(folder).write_text(_CHECKS)
    site_checks(folder).chmod(0o600)
    kubernetes_node(folder).write_text(json.dumps(_NODE))
    if not HAS_TOOLS:
        yield {}
        return
    with simulated_bmc(folder / "bmc") as bmc:
        (folder / "dev/ipmi0").touch()
        program = folder / "bin/ipmitool"
        program.parent.mkdir()
        real = next(each for each in os.get_exec_path() if os.access(f"{each}/ipmitool", os.X_OK))
        program.write_text(_IPMITOOL.format(real=f"{real}/ipmitool", port=bmc.port))
        program.chmod(0o755)
        yield {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def has_bmc(folder: Path) -> bool:
    """Whether a BMC is played here; without OpenIPMI and ipmitool it is not."""
    return (folder / "dev/ipmi0").exists()


def site_checks(folder: Path) -> Path:
    """The file of the site's own checks."""
    return folder / "checks.toml"


def kubernetes_node(folder: Path) -> Path:
    """The node as Kubernetes has it."""
    return folder / "node.json"
