"""Whether a settings file may be used: whose it is, who may write it, and who may read the secrets in it."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path

_MOST_LINKS = 40
#: How /proc/self/mountinfo writes what would end a word.
_ESCAPED = {32: "\\040", 9: "\\011", 10: "\\012", 92: "\\134"}


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


def what_is_wrong(path: Path, state: os.stat_result) -> str | None:
    """Why a file that was named is not to be used; None: it may be. One line with a remedy."""
    if state.st_mode & stat.S_IWOTH:
        return f"{path}: everybody may write it, so it is not used: chmod o-w {path}"
    return None


def who_else_decides(path: Path, state: os.stat_result) -> str | None:
    """Who but root and the caller can change what this file says, or which one has its name; None: nobody.

    Each folder and link on the way counts. A file that is a mount of its own has whoever made the mount put there.
    One line with a remedy. Raises OSError.
    """
    remedy = "so no commands are taken from it: name a file in a folder that you or root alone may write"
    left = list((Path.cwd() / path).parts[:0:-1])
    place, links = Path("/"), 0
    while left:
        part = left.pop()
        if part == "..":
            place = place.parent
            continue
        step = place / part
        found = os.lstat(step)
        if stat.S_ISREG(found.st_mode) and _is_mount(step):
            return None
        sort = "link" if stat.S_ISLNK(found.st_mode) else "folder" if stat.S_ISDIR(found.st_mode) else "file"
        if not is_of_root_or_own(found):
            return f"{path}: the {sort} {step} is user {found.st_uid}'s, {remedy}"
        if sort == "link":
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            target = Path(os.readlink(step))
            place = Path("/") if target.is_absolute() else place
            left += [part for part in target.parts[::-1] if part != "/"]
            continue
        is_kept = sort == "folder" and (found.st_mode & stat.S_ISVTX or os.statvfs(step).f_flag & os.ST_RDONLY)
        if not is_kept and (others := _other_writers(found)):
            return f"{path}: {others} may write the {sort} {step}, {remedy}"
        place = step
    return None if is_of_root_or_own(state) else f"{path}: is user {state.st_uid}'s, {remedy}"


def is_of_root_or_own(state: os.stat_result) -> bool:
    """Whether a file belongs to root or to the caller."""
    return state.st_uid in (0, os.geteuid())


def is_writable_by_others(state: os.stat_result) -> bool:
    """Whether anybody but its owner may write a file, or put something into a folder."""
    return bool(_other_writers(state))


def _is_mount(path: Path) -> bool:
    """Whether root has mounted a file over this name. (A user may mount one of his own, by FUSE.)"""
    wanted = str(path).translate(_ESCAPED)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        found = [line for line in mounts if line.split(" ", 5)[4] == wanted]
    return bool(found) and not any("user_id=" in line and "user_id=0," not in line for line in found)


def who_reads_secrets(path: Path, keys: Iterable[str], state: os.stat_result) -> str | None:
    """Why these keys, which are secrets, may not stand in this file; None: they may. One line with a remedy."""
    named = ", ".join(keys)
    mode = stat.S_IMODE(state.st_mode)
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
