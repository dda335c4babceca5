"""Where a rank's flight recorder is dumped to, and reading such a dump: for torch's own writer, whatever its release.

A dump is written when a collective times out, minutes after the hang began, by a process that may end right after it.
So places are looked up while the rank lives, and files are read later, in a thread that may block on a file system.
Only a regular file of the rank's own user that was written since its process began is taken, by that user's rights, and
no link leads out of the process's own root folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from ..processes.processes import process_uid, started_wall_ns
from ..user_files.system_calls import IN_ROOT, state_of
from ..user_files.user_files import SeenFile, UserFiles, files_of
from .rank_environment import read_environment

#: A dump of the largest usual buffer (20,000 entries with stacks) has 10 MB; a cut pickle is worth nothing.
DUMP_BYTES = 16 << 20
#: The writer may still be at it: a file is taken once it has not changed for so long.
SETTLED_NS = 1_000_000_000
#: What names the file but for the rank, in torch's order; the second is the older name.
PREFIX_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
#: Set: the first variable is the whole name.
DYNAMIC_VARIABLE = "TORCH_FR_DUMP_DYNAMIC_FILE_NAME"
#: Where nothing is set, by release: first in the user's cache, until 2.6 in /tmp.
DEFAULT_NAMES = ("comm_lib_trace_rank_", "nccl_trace_rank_")
OLD_DEFAULT_FOLDER = "/tmp"
_WANTED = frozenset({*PREFIX_VARIABLES, DYNAMIC_VARIABLE, "HOME", "XDG_CACHE_HOME"})
_OFF = frozenset({"", "0", "N", "n", "NO", "no", "F", "f", "FALSE", "false"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpPlaces:
    """Where a rank's dumps may come to lie, the likeliest first: as its process calls them, from its root folder on.

    root: that folder's descriptor, open until ``close``: a container's lies elsewhere than the node's.
    """

    paths: tuple[str, ...]
    owner_uid: int
    files: UserFiles
    root: int
    #: Wall clock: what was written before is of an earlier job.
    since_ns: int

    def close(self) -> None:
        """Lets go of the root folder."""
        os.close(self.root)


def find_dump_places(pid: int, rank: int, owner_uid: int, since_ns: int) -> DumpPlaces | None:
    """Where a rank's flight recorder would write, by the environment that its process began with.

    None: that may not be read, or is another user's process. since_ns: Unix, what the ring claims; what is older than
    the process, by the kernel's word, is not the rank's either.
    """
    try:
        if process_uid(pid) != owner_uid:
            return None
        environment = read_environment(pid, _WANTED)
        files = files_of(owner_uid, pid)
        folder = files.working_folder(pid)
        root = files.root_of(pid)
    except OSError:
        return None
    paths = dump_paths(environment, rank, folder)
    began_ns = max(since_ns, started_wall_ns(pid))
    return DumpPlaces(paths=paths, owner_uid=owner_uid, files=files, root=root, since_ns=began_ns)


def dump_paths(environment: Mapping[str, str], rank: int, folder: str) -> tuple[str, ...]:
    """Absolute paths where torch may write the rank's dump, the likeliest first.

    folder: where the process began, for relative names.
    """
    found: dict[str, None] = {}
    prefixes = [environment[name] for name in PREFIX_VARIABLES if environment.get(name)]
    if prefixes:
        if environment.get(DYNAMIC_VARIABLE, "") not in _OFF:
            found[os.path.join(folder, prefixes[0])] = None
        found.update((os.path.join(folder, f"{prefix}{rank}"), None) for prefix in prefixes)
    else:
        home = environment.get("HOME", "")
        cache = environment.get("XDG_CACHE_HOME") or (os.path.join(home, ".cache") if home else "")
        folders = [os.path.join(cache, "torch")] if cache else []
        for place in (*folders, OLD_DEFAULT_FOLDER):
            found.update((os.path.join(folder, place, f"{name}{rank}"), None) for name in DEFAULT_NAMES)
    return tuple(path for path in found if "\0" not in path)


def is_settled(places: DumpPlaces, path: str, now_ns: int) -> bool:
    """Whether a dump of the rank lies at ``path`` and has not been written at for ``SETTLED_NS``. now_ns: Unix."""
    try:
        state = look_at_dump(places, path)
    except OSError:
        return False
    return _is_of_rank(places, state) and now_ns - state.changed_ns >= SETTLED_NS


def look_at_dump(places: DumpPlaces, path: str) -> SeenFile:
    """What lies at ``path``, with the rank's user's rights. Raises OSError where nothing does."""
    return places.files.look_at(places.root, path, IN_ROOT)


def read_dump(places: DumpPlaces, path: str) -> bytes:
    """The first ``DUMP_BYTES`` of a dump; empty if it is not a file of this rank's user, or too old.

    Raises OSError where it is gone, a link, or may not be read.
    """
    fd = places.files.open_file(places.root, path, IN_ROOT)
    try:
        state = state_of(fd)
        seen = SeenFile(mode=state.mode, uid=state.uid, size_bytes=state.size, changed_ns=state.changed_ns)
        if not _is_of_rank(places, seen):
            return b""
        with open(fd, "rb", closefd=False) as file:
            return file.read(DUMP_BYTES)
    finally:
        os.close(fd)


def _is_of_rank(places: DumpPlaces, state: SeenFile) -> bool:
    return (
        stat.S_ISREG(state.mode)
        and state.uid == places.owner_uid
        and 0 < state.size_bytes <= DUMP_BYTES
        and state.changed_ns >= places.since_ns
    )
