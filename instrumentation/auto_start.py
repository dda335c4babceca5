"""What the bootstrap arms: the recording starts when torch has been imported, if this process is a rank of its own.

Runs at interpreter start, so it imports next to nothing. A process owns its rank if no ancestor does: the first Python
process with RANK marks itself; one that inherits the mark stays silent unless it joins a process group while the
marked one never imported torch (a wrapper script that starts the real trainer).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .rank_identity import OWNER_VARIABLE, owner_mark
from .support.import_hooks import PostImportFinder

#: Arguments by which multiprocessing starts its children, and modules that torch and Ray start as helpers.
HELPER_ARGUMENTS = ("--multiprocessing-fork",)


def arm() -> None:
    """Lets the recording start once torch has been imported, and marks this process in the environment as the rank's
    owner.

    Where the mark was inherited: a spawned child does nothing, any other starts only when it joins a process group.
    """
    rank = os.environ["RANK"]
    mark = os.environ.get(OWNER_VARIABLE, "")
    mark_pid, _, mark_rank = mark.partition(":")
    inherited = mark != "" and mark_pid != str(os.getpid()) and mark_rank == rank
    if inherited and _is_spawned_child():
        return
    if not inherited:
        os.environ[OWNER_VARIABLE] = owner_mark(int(rank))
    PostImportFinder().when_imported("torch", _join_late if inherited else _start)


def _is_spawned_child() -> bool:
    """multiprocessing's children and Python's own helper processes (resource tracker, fork server)."""
    arguments = getattr(sys, "orig_argv", sys.argv)
    return any(argument in HELPER_ARGUMENTS or argument.startswith("from multiprocessing.") for argument in arguments)


def _start(torch: ModuleType) -> None:
    from . import api

    api.start_automatically()


def _join_late(torch: ModuleType) -> None:
    """A process below the marked one: start only if it joins a process group and the marked one has no ring."""
    from . import api
    from .support.patch import Patch

    dist = sys.modules.get("torch.distributed")
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if dist is None or c10d is None or api.is_owned_by_another():
        return

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            api.start_automatically()
            return original(*args, **kwargs)

        return init_process_group

    Patch("late_start", [(c10d, "init_process_group"), (dist, "init_process_group")], make).install()
