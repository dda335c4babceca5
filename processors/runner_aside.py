"""State that was taken out of use because its operator failed on it: kept in the file under time and reason, not read.

For a person who looks into it: `sqlite3 state.sqlite "SELECT * FROM aside"`. Releases that do not know the table leave
it alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: So many keys are kept; beyond that the oldest go.
KEPT_ASIDE = 64
ASIDE_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS aside (at_ns INTEGER NOT NULL, operator TEXT NOT NULL, key TEXT NOT NULL,"
    " why TEXT NOT NULL, tbl TEXT NOT NULL, row TEXT NOT NULL, value BLOB NOT NULL)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """The rows of one operator's key, by table and row. at_ns: Unix, by the bus. why: for people."""

    operator: str
    key: str
    at_ns: int
    why: str
    rows: Mapping[tuple[str, str], bytes]


def write_aside(database: sqlite3.Connection, keys: Sequence[SetAside]) -> None:
    """Adds keys to those that are kept, inside the caller's transaction; the oldest go. Raises sqlite3.Error."""
    if not keys:
        return
    for each in keys:
        database.executemany(
            "INSERT INTO aside VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (each.at_ns, each.operator, each.key, each.why, table, row, value)
                for (table, row), value in each.rows.items()
            ],
        )
    database.execute(
        "DELETE FROM aside WHERE (at_ns, operator, key) NOT IN"
        " (SELECT DISTINCT at_ns, operator, key FROM aside ORDER BY at_ns DESC LIMIT ?)",
        (KEPT_ASIDE,),
    )
