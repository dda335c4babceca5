"""Whether a file of state may be used, and its way out of the way: never overwritten, never changed by the look."""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path

from .state_versions import OLDEST_READ, SCHEMA_VERSION

#: "whrk": in the file's header, so that a foreign database is known without opening it.
APPLICATION_ID = 0x7768726B
_HEADER_MAGIC = b"SQLite format 3\x00"


def what_is_wrong(path: Path) -> str | None:
    """Why the file must not be used as state, in one line; None if it is ours and sound, empty or absent.

    Raises OSError, and BlockingIOError where another process uses it.
    """
    try:
        if path.exists() and not path.is_file():  # nobody may wait for a FIFO
            return "it is no file"
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return None
    if not header:
        return None
    if len(header) < 100 or not header.startswith(_HEADER_MAGIC):
        return "it is not a whichrank state file"
    version, application = struct.unpack_from(">I", header, 60)[0], struct.unpack_from(">I", header, 68)[0]
    if application != APPLICATION_ID:
        return "it is another program's database"
    if version > SCHEMA_VERSION:
        return f"it is of a newer release (format {version}, this one reads {SCHEMA_VERSION})"
    if version < OLDEST_READ:
        return f"it is of an older release (format {version}, this one reads {OLDEST_READ} and later)"
    return _damage(path)


def _damage(path: Path) -> str | None:
    # Read-only, because closing a writable connection would fold the log into the damaged file.
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=0.5)
    except sqlite3.Error as error:
        return f"it is damaged ({error})"
    try:
        found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        return None if found == "ok" else f"it is damaged ({str(found).splitlines()[0]})"
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise BlockingIOError(f"{path}: another process is using this state") from error
        return f"it is damaged ({error})"
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # words of SQLite's may name what has no name any more
        return f"it is damaged ({error})"
    finally:
        database.close()


def set_aside(path: Path) -> Path:
    """Renames the file, and what SQLite keeps beside it, to a free name, which it returns. Raises OSError."""
    number = 1
    while (aside := path.with_name(f"{path.name}.aside-{number}")).exists():
        number += 1
    for suffix in ("", "-wal", "-shm", "-journal"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    return aside
