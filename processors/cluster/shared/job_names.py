"""Whose job a storage server means: its own names for jobs (Lustre's ``jobid_var`` and ``jobid_name``) as ours. Pure.

What they may be: a scheduler's id ("4711", "4711.batch"), the name of a process with its user ("python3.1001"), that
with a host or an id ("dd.0.node-3", "node_exporter:989:node-3", "%e.%u:%j"). A name that nobody here knows stays as it
is: a backup or a login node burdens a server too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .placements import Attempt, Placements

#: Around an owner's job of an id that others have, too (``job_owners``).
_MARK = "\x1f"
_PARTS = re.compile(r"[:@/+]")
_SHORT_HOST = 3


def job_of(name: str, placements: Placements, begin: float, end: float) -> str:
    """The id of the job here that a server means by this name; "" where it is not known, or could be several.

    begin, end: when that job asked the server for much (Unix seconds).
    """
    running = {a.key: a for at in (begin, (begin + end) / 2, end) for a in placements.running_at(at)}
    attempts = list(running.values())
    parts = list(dict.fromkeys([name, *(part for part in _PARTS.split(name) if part)]))
    # "4711.batch" is a step of a job, "python3.1001" a process of a user.
    by_id = _by_id([*parts, *(part.partition(".")[0] for part in parts if part[:1].isdigit())], attempts)
    by_user = _by_user([*parts, *(word for part in parts for word in part.split(".")[1:])], attempts)
    by_host = _by_host(name, attempts)
    # A number may be a job's or a user's: where both are here and are not one, nobody is named.
    found = {each for each in (by_id, by_user, by_host) if each}
    if len(found) == 1:
        return found.pop()
    return by_id if by_id and by_id == by_host else ""


def _by_id(words: Iterable[str], attempts: Iterable[Attempt]) -> str:
    known: dict[str, set[str]] = {}
    for attempt in attempts:
        known.setdefault(_shown(attempt.job), set()).add(attempt.job)
    return next((_only(known[word]) for word in words if word in known), "")


def _by_host(name: str, attempts: Iterable[Attempt]) -> str:
    """By the host that the name ends in, cut short as kernels do."""
    low = name.lower()
    found: dict[str, set[int]] = {}
    for attempt in attempts:
        for node in attempt.nodes:
            host = node.partition(".")[0].lower()
            if len(host) >= _SHORT_HOST and re.search(rf"(?:^|[.:@/+]){re.escape(host)}(?:$|[.:@/+])", low):
                found.setdefault(attempt.job, set()).add(len(host))
    return _only(set(found))


def _by_user(words: Iterable[str], attempts: Iterable[Attempt]) -> str:
    """By the user, where one job alone is his."""
    of_owner: dict[str, set[str]] = {}
    for attempt in attempts:
        if attempt.owner:
            of_owner.setdefault(attempt.owner, set()).add(attempt.job)
    return next((_only(of_owner[word]) for word in words if word in of_owner), "")


def _shown(job: str) -> str:
    return job.split(_MARK)[1] if job.startswith(_MARK) else job


def _only(jobs: set[str]) -> str:
    return next(iter(jobs)) if len(jobs) == 1 else ""
