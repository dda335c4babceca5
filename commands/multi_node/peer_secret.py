"""The secret that the instances of one job share: the one that was set, or one of the user's own in his home folder.

Nothing that other users can see may lead to it: neither the command, nor the job's id or address. Nodes of a cluster
usually share home folders, and with them this file; where they do not, the secret has to be set on all of them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

_FILE = Path("whichrank") / "judge-secret"
_MOST_BYTES = 4096


class NoSecret(Exception):
    """There is none, in one line with the remedy."""


def find_secret(given: str, environ: Mapping[str, str]) -> str:
    """The secret that was given, else the user's own, which is made where he has none. Raises NoSecret."""
    if given:
        return given
    home = environ.get("XDG_CONFIG_HOME") or (os.path.join(environ["HOME"], ".config") if environ.get("HOME") else "")
    if not home:
        raise NoSecret("there is no home folder for a secret; set WHICHRANK_JUDGE_SECRET on all nodes")
    path = Path(home) / _FILE
    try:
        if not path.exists():
            _make(path)
        return _read(path)
    except OSError as error:
        raise NoSecret(f"{path}: {error.strerror or error}; set WHICHRANK_JUDGE_SECRET on all nodes") from error


def _make(path: Path) -> None:
    """Whole or not at all, and only the first of several nodes: a link is made in one step on NFS as well."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, secrets.token_hex(32).encode())
        os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.close(descriptor)
        draft.unlink()


def _read(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise NoSecret(f"{path}: must be a file of your own that nobody else may read: chmod 600 {path}")
        text = os.read(descriptor, _MOST_BYTES).decode(errors="replace").strip()
    finally:
        os.close(descriptor)
    if len(text) < 16:
        raise NoSecret(f"{path}: too short for a secret; delete it, and a new one is made")
    return text
