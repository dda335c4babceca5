"""Files that hold a secret: read only where nobody else can read them, or where who runs the service has put them.

Nobody else can where the mode of the file says so (0600), or that of a folder above it (0700).
Such places are ``/run/secrets`` (containers), ``$CREDENTIALS_DIRECTORY`` (systemd), and volumes of Kubernetes, whose
files are links through ``..data``: there the mode says nothing of who gets in.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .file_trust import is_of_root_or_own, is_writable_by_others
from .given_file import read_given_file

MOST_SECRET_BYTES = 16 << 10
_PLACES = ("/run/secrets", "/var/run/secrets")
_CREDENTIALS_VARIABLE = "CREDENTIALS_DIRECTORY"
_OF_KUBERNETES = "..data"


def read_secret_file(path: Path) -> str:
    """The secret in a file, without what is blank around it; "" where the file is empty.

    Raises ValueError: why it is not to be had, in a few words that hold the remedy and no part of the secret.
    """
    try:
        content, state = read_given_file(path, MOST_SECRET_BYTES)
    except OSError as error:
        raise ValueError(error.strerror or type(error).__name__) from None
    if wrong := _who_else_has_it(path, state):
        raise ValueError(wrong)
    try:
        return content.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise ValueError("no text") from None


def _who_else_has_it(path: Path, state: os.stat_result) -> str:
    mode = stat.S_IMODE(state.st_mode)
    if is_of_root_or_own(state) and (not mode & 0o077 or _is_out_of_reach(path, state)):
        return ""
    if _was_put_there(path, state):
        return ""
    if not is_of_root_or_own(state):
        return f"is user {state.st_uid}'s, who knows what is in it: use a file of your own (chown, chmod 600)"
    return f"others than its owner may use it ({mode:04o}): chmod 600 {path}"


def _is_out_of_reach(path: Path, state: os.stat_result) -> bool:
    """Whether a folder above the file keeps everybody else out; another name of the file may lie anywhere."""
    if state.st_nlink != 1 or is_writable_by_others(state):
        return False
    try:
        above = [os.stat(folder) for folder in Path(os.path.realpath(path)).parents]
    except OSError:
        return False
    return any(is_of_root_or_own(each) and not each.st_mode & (stat.S_IXGRP | stat.S_IXOTH) for each in above)


def _was_put_there(path: Path, state: os.stat_result) -> bool:
    """Whether the file lies where who runs the service puts secrets: in a folder that nobody else can change."""
    if is_writable_by_others(state):
        return False
    folder = Path(os.path.abspath(path.parent))
    places = [Path(place) for place in (*_PLACES, os.environ.get(_CREDENTIALS_VARIABLE, "")) if place]
    if any(folder == place or folder.resolve() == place.resolve() for place in places):
        return _is_safe(folder)
    try:  # name -> ..data/name, ..data -> ..2026_01_01: all of them root's
        steps = (folder, folder / path.name, folder / _OF_KUBERNETES, (folder / _OF_KUBERNETES).resolve())
        target = os.readlink(folder / path.name)
        of_root = all(os.lstat(step).st_uid == 0 for step in steps)
    except OSError:
        return False
    through = target == f"{_OF_KUBERNETES}/{path.name}"
    return through and of_root and state.st_uid == 0 and _is_safe(steps[-1]) and _is_safe(folder)


def _is_safe(folder: Path) -> bool:
    """Whether nobody else can put anything in another one's place here."""
    try:
        state = os.stat(folder)
        read_only = bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False
    is_closed = read_only or bool(state.st_mode & stat.S_ISVTX) or not is_writable_by_others(state)
    return is_of_root_or_own(state) and is_closed
