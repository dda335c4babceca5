"""What a node tells of its surroundings, handed on to the cluster operator: where it stands, what was changed on it,
what is planned for it, and how much it asks of services that others use too.

None of it is a condition of the node: it explains nothing by itself, and is a cause only where several jobs share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...telemetry.records import Event, Finding, Identity
from ...telemetry.vocabulary import EventName
from .loads import LoadNews

_MAX_TEXT = 300
_MAX_LABELS = 64
#: Facts of the scheduler that say beforehand what will happen to a node.
_PLANNED = frozenset({"maintenance"})
#: Events that this module reads.
EVENTS = frozenset({EventName.NODE_TOPOLOGY, EventName.CHANGE, EventName.SCHEDULER})


def findings_of(event: Event, kind: str, now_ns: int) -> Iterator[Finding]:
    """A finding for an event on a node's places, a change, or a plan for it; none for other events.

    kind: of the entity, as "node". now_ns: Unix.
    """
    entity, found = event.identity.node, event.attributes
    if event.name is EventName.NODE_TOPOLOGY:
        told = {str(k): v for k, v in list(found.items())[:_MAX_LABELS] if v not in (None, "")}
        refused = sorted(
            name for name, value in told.items() if isinstance(value, bool) or not isinstance(value, str | int)
        )
        labels = {name: str(value)[:_MAX_TEXT] for name, value in told.items() if name not in refused}
        body: dict[str, Any] = {"entity": entity, "entity_kind": kind, "labels": labels, "refused": refused}
        yield _finding(event.identity, f"topology/{kind}:{entity}", now_ns, {"topology": body})
    elif event.name is EventName.CHANGE and found.get("what"):
        yield from _change(event, kind, now_ns)
    elif event.name is EventName.SCHEDULER and found.get("what") in _PLANNED:
        yield from _plan(event, kind, now_ns)


def load_finding(load: LoadNews, identity: Identity, kind: str, now_ns: int) -> Finding:
    """The finding that tells an entity's load; cleared where the burst is over. kind: of the entity, as "node". now_ns:
    Unix.
    """
    entity = identity.node
    told = {
        "entity": entity,
        "entity_kind": kind,
        "service": load.service,
        "operation": load.operation,
        "usual": load.usual,
        "since": load.since,
        "until": load.until,
        "rate": load.rate,
    }
    if load.job:
        told |= {"job": load.job, "whole": load.whole}
    key = f"load/{kind}:{entity}/{load.service}/{load.operation}" + (f"/{load.job}" if load.job else "")
    return _finding(identity, key, now_ns, {"load": told}, cleared=load.until is not None)


def _change(event: Event, kind: str, now_ns: int) -> Iterator[Finding]:
    found, entity = event.attributes, event.identity.node
    where = str(found.get("where", ""))
    change = {
        "entity": entity,
        "entity_kind": kind,
        "what": str(found["what"])[:_MAX_TEXT],
        "old": str(found.get("old", ""))[:_MAX_TEXT],
        "new": str(found.get("new", ""))[:_MAX_TEXT],
        # A device or a job; the words for the node itself differ between collectors.
        "where": "" if where in ("node", "host") else where[:_MAX_TEXT],
        "time": event.time_ns / 1e9,
        "baseline": bool(found.get("baseline", False)),
        "job": event.identity.job,
    }
    yield _finding(event.identity, f"change/{kind}:{entity}/{change['what']}/{where}", now_ns, {"change": change})


def _plan(event: Event, kind: str, now_ns: int) -> Iterator[Finding]:
    found, entity = event.attributes, event.identity.node
    begin, end = found.get("start_s"), found.get("end_s")
    if not isinstance(begin, int | float) or not isinstance(end, int | float):
        return
    name = str(found.get("name") or found["what"])[:_MAX_TEXT]
    plan = {
        "id": f"{found.get('scheduler', 'scheduler')}/{name}",
        "what": str(found["what"]),
        "begin": float(begin),
        "end": float(end),
        "told": event.time_ns / 1e9,
        "where": {kind: [entity]},
        "jobs": [],
        "by": str(found.get("scheduler", "scheduler")),
    }
    over = bool(found.get("over"))
    yield _finding(event.identity, f"plan/{plan['id']}/{kind}:{entity}", now_ns, {"plan": plan}, cleared=over)


def _finding(identity: Identity, key: str, now_ns: int, body: Mapping[str, Any], *, cleared: bool = False) -> Finding:
    who = Identity(cluster=identity.cluster, node=identity.node)
    return Finding(identity=who, key=key, cleared=cleared, time_ns=now_ns, body=body)
