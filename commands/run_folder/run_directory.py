"""What one watched run leaves on disk: run.json, incidents.jsonl, capture, state, evidence; and its ring folder.

Runs in the process of ``whichrank run`` and of ``whichrank replay``. Never deletes or overwrites an earlier run.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ...telemetry.regular_files import read_regular
from ...telemetry.ring_root import SHARED_MEMORY, make_ring_root
from .run_description import RunDescription, read_description, write_description

RUN_FILE = "run.json"
INCIDENTS_FILE = "incidents.jsonl"
CAPTURE_FOLDER = "capture"
STATE_FILE = "state.sqlite"
EVIDENCE_FOLDER = "evidence"
_MOST_DESCRIPTION_BYTES = 4 << 20
#: Ends of files that are run; what has none of them is a module's name or a program's.
_SCRIPTS = (".py", ".sh", ".bash")


class Unusable(Exception):
    """A folder or file cannot be used; the message is one line that names it and says what is wrong."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The folder of one run."""

    path: Path

    @property
    def owner(self) -> int | None:
        """Whose files belong here, where the folder is another user's, who could put a link to anybody's file into it.

        None: it is the caller's own.
        """
        try:
            uid = os.stat(self.path).st_uid
        except OSError:  # told where something is read
            return None
        return None if uid == os.geteuid() else uid

    @property
    def capture(self) -> Path:
        """The folder of all messages, for a replay."""
        return self.path / CAPTURE_FOLDER

    @property
    def state(self) -> Path:
        """The file of the operators' state, in SQLite."""
        return self.path / STATE_FILE

    @property
    def evidence(self) -> Path:
        """The folder of what agents have kept for incidents."""
        return self.path / EVIDENCE_FOLDER

    @property
    def incidents(self) -> Path:
        """The file of incidents, a line for each revision."""
        return self.path / INCIDENTS_FILE

    def write_run(self, description: RunDescription) -> None:
        """Write run.json in one piece. Raises OSError."""
        temporary = self.path / f".{RUN_FILE}.{os.getpid()}"
        try:
            with temporary.open("x") as file:  # nothing that is there: a link may be
                file.write(write_description(description))
            temporary.replace(self.path / RUN_FILE)
        finally:
            temporary.unlink(missing_ok=True)

    def read_run(self) -> RunDescription:
        """What run.json says. Raises Unusable where it cannot be read."""
        path = self.path / RUN_FILE
        try:
            return read_description(read_regular(path, _MOST_DESCRIPTION_BYTES, self.owner).decode())
        except FileNotFoundError:
            raise Unusable(f"{path}: not there; is {self.path} the folder of a run?") from None
        except (OSError, ValueError) as error:
            raise Unusable(f"{path}: cannot be read: {error}") from error
        except TypeError as error:
            raise Unusable(f"{path}: {error}") from error


def make_job_id(script: str) -> str:
    """An id that no other job on any machine has: the script's name, and eight random characters."""
    suffix = next((suffix for suffix in _SCRIPTS if script.endswith(suffix)), "")
    stem = script.removesuffix(suffix).rsplit(".", 1)[-1]
    return f"{_safe(stem)}-{secrets.token_hex(4)}"


def make_run_directory(wanted: Path | None, job: str, node: str = "") -> tuple[RunDirectory, str | None]:
    """Creates the folder of a run: ``wanted``, or one named by time, job and node below whichrank-out.

    Where that cannot be written, or holds another run already, a temporary folder is used instead. Returns the
    directory and why a temporary one is used (None: it is not). node: this one of several; file systems may be shared,
    so its name is part of a folder that nobody named. Raises Unusable when no place can be written at all.
    """
    name = "-".join(filter(None, (time.strftime("%Y%m%d-%H%M%S"), job, _safe(node) if node else "")))
    path = wanted or Path("whichrank-out") / name
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.path.lexists(path / RUN_FILE) or os.path.lexists(path / INCIDENTS_FILE):
            raise Unusable(f"{path}: holds another run already; choose another --out")
        if os.geteuid() == 0 and (why_not := _who_leads_root(path.stat())):
            raise Unusable(f"{path}: {why_not}, who could lead root's files elsewhere; choose a new --out")
        _probe(path)
        return RunDirectory(path.resolve()), None
    except (OSError, Unusable) as error:
        why = str(error) if isinstance(error, Unusable) else f"{path}: {error.strerror}"
    problems = [why]
    for elsewhere in (tempfile.gettempdir(), "/dev/shm"):
        try:
            fallback = Path(tempfile.mkdtemp(prefix=f"whichrank-{job}-", dir=elsewhere))
            _probe(fallback)
            return RunDirectory(fallback), why
        except OSError as error:
            problems.append(f"{elsewhere}: {error.strerror}")
    raise Unusable("; ".join(problems))


def _who_leads_root(folder: os.stat_result) -> str:
    """Who but root may put links into a folder, in words; "" nobody."""
    if folder.st_uid != 0:
        return f"belongs to user {folder.st_uid}"
    if folder.st_mode & 0o002:
        return "may be written by everybody"
    return f"may be written by group {folder.st_gid}" if folder.st_mode & 0o020 and folder.st_gid else ""


def make_ring_directory(root: Path | None, job: str) -> Path:
    """Create the folder for the ranks' rings: tmpfs, only for this user. Raises Unusable."""
    try:
        root = root or make_ring_root()
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if root.stat().st_uid != os.getuid():
            raise Unusable(f"{root}: belongs to another user")
        path = _make_new(root / _safe(job))
        os.statvfs(path)
    except OSError as error:
        raise Unusable(f"{root or SHARED_MEMORY}: no folder for rings: {error.strerror or error}") from error
    return path


def _make_new(path: Path) -> Path:
    """A folder that nobody else has: another instance of this job on this machine, or a killed one, may have the name.

    Raises OSError.
    """
    try:
        path.mkdir(mode=0o700)
        return path
    except FileExistsError:
        path = path.with_name(f"{path.name}-{secrets.token_hex(2)}")
        path.mkdir(mode=0o700)
        return path


def remove_ring_directory(path: Path) -> None:
    """Remove the rings of a job that has ended; what cannot be removed stays."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()  # only when no other job has rings there


def _probe(path: Path) -> None:
    """Write and remove a page. Raises OSError: read-only, full, no right."""
    probe = path / f".probe.{os.getpid()}"
    try:
        probe.write_bytes(b"\0" * 4096)
    finally:
        probe.unlink(missing_ok=True)


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-")[:40] or "job"
