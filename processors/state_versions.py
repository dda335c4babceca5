"""State files of earlier releases: which are read, and what is changed in them first.

A release that changes the tables adds a step here; one that changes what operators keep in their rows adds one as
well, or raises ``OLDEST_READ``, and the state is then made anew from the bus. Two releases before are read. A newer
state under older code is set aside by that code, and made anew.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping

#: Of the tables in the state file and of what the operators put into their rows.
SCHEMA_VERSION = 10
OLDEST_READ = 8


def _from_8(database: sqlite3.Connection) -> None:
    """What findings remember has a name now; those that were saved without one are known by what they remember."""


def _from_9(database: sqlite3.Connection) -> None:
    """An entity's row is two now; one that was saved in one is read as such, and written anew at its next look."""


#: By the version that a step begins with.
_STEPS: Mapping[int, Callable[[sqlite3.Connection], None]] = {8: _from_8, 9: _from_9}


def bring_up(database: sqlite3.Connection, version: int) -> None:
    """Changes a file of ``version`` to one of this release, inside the caller's transaction. Raises sqlite3.Error.

    Raises KeyError for a version that is not read any more.
    """
    for step in range(version, SCHEMA_VERSION):
        _STEPS[step](database)


def give_rowids(database: sqlite3.Connection, create_rows: str) -> None:
    """Makes the table of rows anew with rowids, where it was made without; every release reads and writes either.

    create_rows: the statement that makes it. Inside the caller's transaction. Raises sqlite3.Error.
    """
    (statement,) = database.execute("SELECT sql FROM sqlite_master WHERE name = 'rows'").fetchone() or ("",)
    if "WITHOUT ROWID" not in statement.upper():
        return
    database.execute("ALTER TABLE rows RENAME TO rows_before")
    database.execute(create_rows)
    database.execute("INSERT INTO rows SELECT operator, key, tbl, row, value FROM rows_before")
    database.execute("DROP TABLE rows_before")
