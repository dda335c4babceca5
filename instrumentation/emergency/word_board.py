"""Where ranks leave each other a word: a folder on one node, the c10d store over many. No call waits for another rank.

A word is put once and never changed: whoever comes first has decided. For the watching thread only; a store's answer
may take as long as the network does. Standard library only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from ...telemetry.emergency_words import BOARD_FOLDER

_PREFIX = "whichrank/emergency/"
_LONGEST_WORD = 4096
#: Whether the store is still there is asked of the kernel so often.
_CHECK_S = 0.5


class WordBoard(Protocol):
    """Both raise OSError or RuntimeError where there is no way to the others."""

    #: Whether looking costs nobody else anything.
    is_near: bool

    def put(self, key: str, word: str) -> str:
        """Leaves ``word`` under this key unless there is one; returns what is there."""

    def get(self, key: str) -> str | None:
        """The word under this key; None while there is none."""


class WordFolder:
    """Files of a folder that all ranks see. Keys are file names."""

    is_near = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, key: str, word: str) -> str:
        """See WordBoard. A link appears with its whole content or not at all."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path, part = self._folder / key, self._folder / f".{key}.{os.getpid()}"
        part.write_text(word, encoding="utf-8")
        try:
            os.link(part, path)
        except FileExistsError:
            return self.get(key) or ""
        finally:
            part.unlink(missing_ok=True)
        return word

    def get(self, key: str) -> str | None:
        """See WordBoard."""
        try:
            with open(self._folder / key, encoding="utf-8", errors="replace") as file:
                return file.read(_LONGEST_WORD)
        except FileNotFoundError:
            return None


class WordStore:
    """Keys of torch's default store, over a connection of its own where the store can be cloned."""

    is_near = False

    def __init__(self, store: Any, is_connected: Callable[[Any], bool]) -> None:
        self._store, self._is_connected, self._checked_s = store, is_connected, 0.0
        self._check()
        self._store = store.clone() if hasattr(store, "clone") else store

    def put(self, key: str, word: str) -> str:
        """See WordBoard."""
        self._check()
        there: bytes = self._store.compare_set(_PREFIX + key, "", word)
        return there.decode("utf-8", "replace")

    def get(self, key: str) -> str | None:
        """See WordBoard."""
        self._check()
        if not self._store.check([_PREFIX + key]):  # ``get`` would wait for it
            return None
        word: bytes = self._store.get(_PREFIX + key)
        return word.decode("utf-8", "replace")

    def _check(self) -> None:
        now_s = monotonic()
        if now_s - self._checked_s < _CHECK_S:
            return
        self._checked_s = now_s
        if not self._is_connected(self._store):  # else torch prints a C++ backtrace into the job's log
            raise ConnectionError("the store of the process group is gone")


def find_board(
    environ: Mapping[str, str], world_size: int, ring_folder: Path, is_connected: Callable[[Any], bool]
) -> WordBoard | None:
    """The folder where all ranks are on this node, else the store; None while there is no process group.

    is_connected: whether the store is still there.

    Raises OSError or RuntimeError where the store is gone.
    """
    if environ.get("LOCAL_WORLD_SIZE", "1" if world_size == 1 else "") == str(world_size):
        return WordFolder(ring_folder / BOARD_FOLDER)
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or c10d._world.default_pg is None:
        return None
    return WordStore(c10d._get_default_store(), is_connected)
