"""From the root folder down to what a pattern names, by descriptors: each step with the rights of whoever owns it.

A folder that root owns and nobody else may write is trusted: what lies in it has root put there, and root opens it.
Whatever lies in another folder is opened by its owner's helper, and never through a link. Memory and time are bounded:
of each owner so many folders are entered, of each folder so many names are seen, the newest first.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from .capabilities import can_become_others
from .helper import MOST_NAMES
from .system_calls import BELOW, FileState, state_of
from .user_files import files_of

_MAGIC = frozenset("*?[")
_MOST_LINKS = 16
#: Folders that one walk enters, of one owner.
MOST_FOLDERS = 256
_MOST_DEPTH = 32


@dataclass(slots=True)
class OpenFolder:
    """An open folder on the way. ``fd`` is closed by whoever has it."""

    path: str
    fd: int
    state: FileState

    @property
    def is_trusted(self) -> bool:
        """Whether nobody but root, or this process's own user, can put anything here."""
        return self.state.uid in (0, os.geteuid()) and not self.state.mode & 0o022

    def close(self) -> None:
        """Closes the folder; may be called again."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass(slots=True)
class Match:
    """What a pattern names, not opened yet: ``name`` in ``parent``, which is open until the walk goes on."""

    parent: OpenFolder
    name: str
    state: FileState

    @property
    def path(self) -> str:
        """As people write it."""
        return _joined(self.parent.path, self.name)

    def open_file(self) -> int:
        """A descriptor of the regular file, opened with its owner's rights. Raises OSError."""
        if _opens_itself(self.parent, self.state):
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            return _same(os.open(self.name, flags, dir_fd=self.parent.fd), self.state)
        files = files_of(self.state.uid, are_slow=True)
        return _same(files.open_file(self.parent.fd, self.name), self.state)

    def open_folder(self) -> OpenFolder:
        """The folder, opened with its owner's rights, to be listed. Raises OSError."""
        return open_below(self.parent, self.name, self.state)


class NamedFile:
    """A file that a pattern named, in a folder that is held: looked for again by its name in that folder alone."""

    def __init__(self, match: Match) -> None:
        """Holds a descriptor of the folder until ``close``. Raises OSError."""
        parent = match.parent
        self._match = Match(OpenFolder(parent.path, os.dup(parent.fd), parent.state), match.name, match.state)

    def state(self) -> FileState:
        """Of what has the name now; nothing is opened. Raises OSError."""
        return state_of(self._match.parent.fd, self._match.name)

    def open(self) -> int:
        """What has the name now, opened with its owner's rights. Raises OSError."""
        self._match.state = self.state()
        if not stat.S_ISREG(self._match.state.mode):
            raise OSError(errno.EINVAL, "is not a regular file")
        return self._match.open_file()

    def close(self) -> None:
        """Lets go of the folder; may be called again."""
        self._match.parent.close()


@dataclass(slots=True)
class Budget:
    """How many folders of each owner one walk has entered; ``told`` are those who have more."""

    most: int = MOST_FOLDERS
    entered: Counter[int] = field(default_factory=Counter)
    over: set[int] = field(default_factory=set)

    def allows(self, uid: int) -> bool:
        """Counts a folder of that owner; False beyond the bound. Root's are not counted."""
        if uid == 0:
            return True
        self.entered[uid] += 1
        if self.entered[uid] > self.most:
            self.over.add(uid)
            return False
        return True


def open_below(parent: OpenFolder, name: str, state: FileState, *, listed: bool = True) -> OpenFolder:
    """The folder ``name``, which had that state a moment ago. Raises OSError; also where it is another one by now."""
    if _opens_itself(parent, state):
        flags = (os.O_RDONLY if listed else os.O_PATH) | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW
        fd = os.open(name, flags, dir_fd=parent.fd)
    else:
        fd = files_of(state.uid).open_folder(parent.fd, name, BELOW)
    return OpenFolder(_joined(parent.path, name), _same(fd, state), state)


def _opens_itself(parent: OpenFolder, state: FileState) -> bool:
    """Whether this process may open what has that state: nobody else can have put it there, or it has no rights but its
    own user's, which nobody can lead astray.
    """
    if os.geteuid() != 0 and not can_become_others():
        return True
    return parent.is_trusted and state.uid in (0, os.geteuid())


def newest_entries(
    place: OpenFolder, wanted: Callable[[str], bool], most: int = MOST_NAMES
) -> list[tuple[str, FileState]]:
    """Name and state of what lies in a folder, the newest first; only names that are wanted, and ``most`` of them.

    Raises OSError.
    """
    names: list[str] = []
    with os.scandir(place.fd) as entries:
        for entry in entries:
            if wanted(entry.name):
                names.append(entry.name)
                if len(names) >= most:
                    break
    found = []
    for name in names:
        with contextlib.suppress(OSError):
            found.append((name, state_of(place.fd, name)))
    found.sort(key=lambda each: (-each[1].changed_ns, each[0]))
    return found


def find_matches(pattern: str, report: Callable[[str], None], most_folders: int = MOST_FOLDERS) -> Iterator[Match]:
    """What an absolute pattern of ``glob`` (``**`` included) names. What may not be listed is reported, a line each."""
    parts = [part for part in os.path.normpath(pattern).split("/") if part]
    root = OpenFolder("/", os.open("/", os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY), state_of(-100, "/"))
    walk = _Walk(report, Budget(most=most_folders))
    yield from walk.below(root, parts, 0)
    for uid in sorted(walk.budget.over):
        report(f"{pattern}: more than {most_folders} folders of user {uid}; of his only the newest are looked at")


class _Walk:
    def __init__(self, report: Callable[[str], None], budget: Budget) -> None:
        self._report = report
        self.budget = budget
        self._links = 0

    def below(self, place: OpenFolder, parts: list[str], depth: int) -> Iterator[Match]:
        """Closes ``place`` at its end."""
        try:
            yield from self._steps(place, parts, depth)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.ENOTDIR:
                self._report(
                    f"{place.path}: {error.strerror}; what lies in it is not looked at (run the agent as root)"
                )
        finally:
            place.close()

    def _steps(self, place: OpenFolder, parts: list[str], depth: int) -> Iterator[Match]:
        part, rest = parts[0], parts[1:]
        if part == "**":
            if rest:
                again = OpenFolder(place.path, os.dup(place.fd), place.state)
                yield from self.below(again, rest, depth)
            for name, state in newest_entries(place, lambda name: not name.startswith(".")):
                if stat.S_ISDIR(state.mode) and depth < _MOST_DEPTH:
                    yield from self._enter(place, name, state, parts, depth + 1)
                elif not rest:
                    yield Match(place, name, state)
            return
        if _MAGIC.isdisjoint(part):
            yield from self._one(place, part, rest, depth)
            return
        hidden = part.startswith(".")
        matches = newest_entries(
            place,
            lambda name: fnmatch.fnmatchcase(name, part) and (hidden or not name.startswith(".")),
            most=MOST_NAMES if not place.is_trusted and not place.state.mode & stat.S_ISVTX else 1 << 20,
        )
        for name, state in matches:
            if not rest:
                yield Match(place, name, state)
            elif stat.S_ISDIR(state.mode):
                yield from self._enter(place, name, state, rest, depth + 1)

    def _one(self, place: OpenFolder, name: str, rest: list[str], depth: int) -> Iterator[Match]:
        state = state_of(place.fd, name)
        if stat.S_ISLNK(state.mode) and place.is_trusted and self._links < _MOST_LINKS:
            self._links += 1
            target = os.readlink(name, dir_fd=place.fd)
            parts = [part for part in os.path.normpath(os.path.join(place.path, target)).split("/") if part]
            root = OpenFolder("/", os.open("/", os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY), state_of(-100, "/"))
            yield from self.below(root, parts + rest, depth)
        elif not rest:
            yield Match(place, name, state)
        elif stat.S_ISDIR(state.mode):
            yield from self._enter(place, name, state, rest, depth + 1)

    def _enter(self, place: OpenFolder, name: str, state: FileState, rest: list[str], depth: int) -> Iterator[Match]:
        if not self.budget.allows(state.uid):
            return
        listed = not _MAGIC.isdisjoint(rest[0])
        try:
            below = open_below(place, name, state, listed=listed)
        except FileNotFoundError:
            return
        except OSError as error:
            path = _joined(place.path, name)
            self._report(f"{path}: {error.strerror}; what lies in it is not looked at (run the agent as root)")
            return
        yield from self.below(below, rest, depth)


def _same(fd: int, state: FileState) -> int:
    if state_of(fd).device_inode != state.device_inode:
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "was swapped for another one meanwhile")
    return fd


def _joined(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"
