"""whichrank: which rank, which node, why. See README.md.

Importing this package imports nothing but this file: what training scripts use is loaded when they use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .instrumentation.api import init, on_checkpoint, phase, step

__version__ = "0.1.0"
__all__ = ["__version__", "init", "on_checkpoint", "phase", "step"]


def __getattr__(name: str) -> Any:
    if name in ("init", "on_checkpoint", "phase", "step"):
        from .instrumentation import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
