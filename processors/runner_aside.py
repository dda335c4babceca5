"""State that was taken out of use because its operator failed on it: kept in the file under time and reason, not read.

For a person who looks into it: `sqlite3 state.sqlite "SELECT * FROM aside"`. Releases that do not know the table leave
it alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .fair_share import FairShare

#: So many keys are kept; beyond that the oldest of the owner who has most go.
KEPT_ASIDE = 64
ASIDE_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS aside (at_ns INTEGER NOT NULL, operator TEXT NOT NULL, key TEXT NOT NULL,"
    " why TEXT NOT NULL, tbl TEXT NOT NULL, row TEXT NOT NULL, value BLOB NOT NULL)",
    # A table of its own: the release before this one writes all columns of the other.
    "CREATE TABLE IF NOT EXISTS aside_owners (at_ns INTEGER NOT NULL, operator TEXT NOT NULL, key TEXT NOT NULL,"
    " owner TEXT NOT NULL, PRIMARY KEY (at_ns, operator, key)) WITHOUT ROWID",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """The rows of one operator's key, by table and row. at_ns: Unix, by the bus. why: for people. owner: of the job."""

    operator: str
    key: str
    at_ns: int
    why: str
    owner: str = ""
    rows: Mapping[tuple[str, str], bytes]


def surplus(owners: Iterable[str]) -> set[int]:
    """Of keys in the order in which they were set aside, by their owners, the places of those that are too many."""
    share = FairShare((str(place), owner) for place, owner in enumerate(owners))
    gone = set()
    while len(share) > KEPT_ASIDE:
        place = share.first_to_go()
        share.remove(place)
        gone.add(int(place))
    return gone


def write_aside(database: sqlite3.Connection, keys: Sequence[SetAside]) -> None:
    """Adds keys to those that are kept, in the caller's transaction; what is too many goes. Raises sqlite3.Error."""
    if not keys:
        return
    for each in keys:
        who = (each.at_ns, each.operator, each.key)
        database.executemany(
            "INSERT INTO aside VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(*who, each.why, table, row, value) for (table, row), value in each.rows.items()],
        )
        database.execute("INSERT OR REPLACE INTO aside_owners VALUES (?, ?, ?, ?)", (*who, each.owner))
    kept = database.execute(
        "SELECT DISTINCT at_ns, operator, key, coalesce(owner, '') FROM aside"
        " LEFT JOIN aside_owners USING (at_ns, operator, key) ORDER BY at_ns"
    ).fetchall()
    gone = [kept[place][:3] for place in sorted(surplus(owner for *_, owner in kept))]
    database.executemany("DELETE FROM aside WHERE at_ns = ? AND operator = ? AND key = ?", gone)
    database.executemany("DELETE FROM aside_owners WHERE at_ns = ? AND operator = ? AND key = ?", gone)
