"""Whether a settings file may be used: whose it is, who may write it, and who may read the secrets in it."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path


def what_is_wrong_here(path: Path) -> str | None:
    """Why a file that nobody named, but that lies in the current folder, is not to be used; None: it may be.

    It and its folder must be the caller's own or root's, and nobody else may write them: whoever starts a command in
    somebody else's folder does not get that one's settings. One line with a remedy.
    """
    for each, sort in ((path, "file"), (path.parent.resolve(), "folder")):
        try:
            state = os.lstat(each)
        except OSError as error:
            return f"{each}: {error.strerror}"
        if sort == "file" and not stat.S_ISREG(state.st_mode):
            return f"{each}: is no regular file, and nobody has named it: name the file that is meant with --config"
        if state.st_uid not in (0, os.geteuid()):
            return f"{each}: this {sort} is user {state.st_uid}'s, so it is not used unasked: name it with --config"
        if others := _other_writers(state):
            return f"{each}: {others} may write this {sort}, so it is not used: chmod go-w {each}"
    return None


def what_is_wrong(path: Path) -> str | None:
    """Why a file that was named is not to be used; None: it may be. One line with a remedy."""
    try:
        state = os.stat(path)
    except OSError:
        return None  # whoever reads it says so
    if state.st_mode & stat.S_IWOTH and stat.S_ISREG(state.st_mode):
        return f"{path}: everybody may write it, so it is not used: chmod o-w {path}"
    return None


def who_reads_secrets(path: Path, keys: Iterable[str]) -> str | None:
    """Why these keys, which are secrets, may not stand in this file; None: they may. One line with a remedy."""
    named = ", ".join(keys)
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return None
    if not named or not mode & 0o077:
        return None
    return (
        f"{path}: holds {named}, and others than its owner may use the file ({mode:04o}): chmod 600 {path}, "
        "or give it by a file of its own (..._file) or by variable"
    )


def _other_writers(state: os.stat_result) -> str:
    """In words; "" where nobody else may write. A group of the owner's own name is nobody else."""
    if state.st_mode & stat.S_IWOTH:
        return "everybody"
    if not state.st_mode & stat.S_IWGRP or state.st_gid == 0:
        return ""
    try:
        group, owner = grp.getgrgid(state.st_gid), pwd.getpwuid(state.st_uid)
    except KeyError:
        return f"group {state.st_gid}"
    is_his_own = group.gr_name == owner.pw_name and owner.pw_gid == group.gr_gid
    return "" if is_his_own and set(group.gr_mem) <= {owner.pw_name} else f"group {group.gr_name}"
