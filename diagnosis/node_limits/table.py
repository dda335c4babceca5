"""The tables of limits, a row per measured thing: of nodes (``gpu.toml``, ``host.toml``, ``network.toml``,
``storage.toml``, and ``exporters.toml`` for what only other people's exporters measure there), of switches
(``switch.toml``), storage servers (``server.toml``), services (``service.toml``) and power units (``power.toml``).

A row names the points that it is about: those of this metric that carry all these attributes (``where``). What follows
has up to three parts, so that whoever changes a limit sees what else is said of the same thing:

``live``   while jobs run it makes a condition of the node (processors/entity/rules.py has the keys)
``check``  before or after a job ``whichrank check`` holds it against a limit (health_checks/point_limits.py)
``port``   the growth of a port's counter: ``diagnose counters`` and the check of the network (counters/rules.py)

Limits are strict: at the limit nothing is said. They differ where the question does: a check asks what a job that
begins needs, a condition what stops or slows one that runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from ..data_file import read_toml

#: By the kind of entity (telemetry.records.Samples) that the rows are about.
FILES = {
    "node": ("gpu.toml", "host.toml", "network.toml", "storage.toml", "exporters.toml"),
    "switch": ("switch.toml",),
    "storage": ("server.toml",),
    "service": ("service.toml",),
    "power": ("power.toml",),
}
_PARTS = frozenset({"live", "check", "port"})


def rows_of(part: str, entity: str = "node") -> Iterator[Mapping[str, Any]]:
    """Of each row that has this part (``check``, ``port`` ...) its keys, with ``metric`` and ``where`` of the row.

    In the files' order. entity: a kind of ``FILES``. Raises ValueError for a row with a key or a part that there is
    not.
    """
    for row in _rows(entity):
        for entry in row.get(part, ()):
            yield {**entry, "metric": row["metric"], "where": row.get("where", {})}


@cache
def _rows(entity: str) -> tuple[Mapping[str, Any], ...]:
    rows = tuple(row for file in FILES[entity] for row in read_toml(__package__ or "", file)["limit"])
    for row in rows:
        unknown = set(row) - _PARTS - {"metric", "where"}
        if unknown or not set(row) & _PARTS:
            raise ValueError(f"node_limits: {row.get('metric')}: {', '.join(sorted(unknown)) or 'no part'}")
    return rows
