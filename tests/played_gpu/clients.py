"""Programs of others that read GPUs: each in a throw-away environment of its own, made once from the package index.

They are not among the project's pins, so that they bring the versions of ``nvidia-ml-py`` that they want.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

from tests.stack.parts.cache import digest_of, made_once

NVITOP = "nvitop==1.7.2"
GPUSTAT = "gpustat==1.1.1"
#: The oldest binding that whichrank takes.
OLDEST_BINDING = "nvidia-ml-py==12.535.77"


@functools.cache
def client(requirement: str) -> Path | None:
    """The folder of its commands, Python among them; None: it cannot be installed here."""
    name = requirement.partition("=")[0]
    digest = digest_of([requirement.encode(), sys.version.encode(), sys.prefix.encode()])
    installer = Path(sys.executable).with_name("uv")
    uv = str(installer) if installer.exists() else shutil.which("uv")
    if uv is None:
        return None

    def make(target: Path) -> None:
        quiet = {"check": True, "capture_output": True, "timeout": 300}
        # Relocatable: it is made beside its place, and moved there when it is whole.
        subprocess.run([uv, "venv", "--relocatable", "--python", sys.executable, str(target)], **quiet)  # type: ignore[call-overload]
        subprocess.run([uv, "pip", "install", "--python", str(target), requirement], **quiet)  # type: ignore[call-overload]

    try:
        return made_once(f"client-{name}", digest, make) / "bin"
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
