"""AMD's Python package ``amdsmi``: found, and loaded only if it belongs to this node's ROCm.

Its structures are those of one release of ``libamd_smi.so``, so the one that ROCm brings beside its library goes first
(``$ROCM_PATH/share/amd_smi``, by default below /opt/rocm), then one that is installed beside whichrank. What is loaded
runs with the agent's rights: a folder that another user can write is left alone.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .maker import DriverClosed

_ROCM = "/opt/rocm"
_PACKAGE = "amdsmi"


def load_amdsmi(environment: Mapping[str, str] | None = None) -> Any:
    """The package, loaded with its library. environment: of this process, for ``ROCM_PATH``.

    Raises ``DriverClosed`` where there is none, its library is missing or older, or others can write its folder.
    """
    variables = os.environ if environment is None else environment
    beside_library = Path(variables.get("ROCM_PATH") or variables.get("ROCM_HOME") or _ROCM) / "share" / "amd_smi"
    problem = _add_to_path(beside_library)
    try:
        # It prints why it finds no library, and goes on to fail by whatever comes next.
        with contextlib.redirect_stdout(io.StringIO()) as said:
            return importlib.import_module(_PACKAGE)
    except ModuleNotFoundError as error:
        if error.name != _PACKAGE:
            raise DriverClosed(f"its package amdsmi cannot be loaded: {error}") from error
        raise DriverClosed(problem or f"its package amdsmi is neither installed nor in {beside_library}") from error
    except (ImportError, AttributeError, KeyError, OSError) as error:
        why = " ".join(said.getvalue().split()) or f"{type(error).__name__}: {error}"
        raise DriverClosed(f"its package amdsmi cannot be loaded: {why[:200]}") from error


def _add_to_path(folder: Path) -> str:
    """Puts ROCm's folder first among those that are searched; the answer is why not, or empty."""
    package = folder / _PACKAGE
    for place in (folder, package):
        try:
            found = os.stat(place)
        except OSError:
            return ""
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{place} can be written by others than root, so nothing is loaded from it: chown root, chmod go-w"
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return ""
