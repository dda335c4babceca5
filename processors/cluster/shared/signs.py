"""Conditions that several jobs may have in common: of switches, servers, services and power units, and held back GPUs.

A row per entity. Jobs know a server or switch by other names than its exporter has: in short, by the file system that
it is a part of, or as what is everybody's; so signs are asked for by any of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ...condition_document import ConditionReport
from ...entity.loads import filesystem_of
from ...operator import Table
from .landscape import ONE_FOR_ALL, Landscape

MAX_SIGNS, MAX_SIGNS_PER_ENTITY = 16_384, 256
#: So many switches that say it at one time are the fabric's sign.
WHOLE_FABRIC = 3
#: Severities of signs that something is broken; others say that it is busy, or worn.
FAULTS = frozenset({"error", "fatal"})
#: What a server says when more is asked of it than it can do, whoever asks.
OF_LOAD = frozenset({"server_slow", "server_burdened", "requests_wait", "lock_timeouts"})
#: What a switch says of a link that is lost.
OF_ONE_LINK = frozenset({"port_down", "link_downed", "carrier_changes"})
#: Conditions that several jobs' nodes may have for one reason, besides those of entities that are no nodes.
THROTTLES = frozenset({"gpu_throttled", "gpu_power_brake", "thermal"})
#: A condition that ended so long ago says nothing any more.
SIGN_KEPT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A condition that several jobs may have in common. since, until: Unix seconds; until None: it lasts.

    trust: who could have written it, as ``Trust`` has it; "" not known.
    """

    name: str
    kind: str
    since: float
    until: float | None
    severity: str
    text: str
    trust: str = ""

    def lasted_at(self, onset: float, window_s: float) -> bool:
        """Whether it stood at ``onset``, or came or went within ``window_s`` around it."""
        return self.since <= onset + window_s and (self.until is None or self.until >= onset - window_s)


class Signs:
    """Over a table of rows. landscape: says which names of places and services an entity has."""

    def __init__(self, table: Table, landscape: Landscape) -> None:
        self._table, self._landscape = table, landscape
        #: By entity: by condition.
        self._by_entity: dict[str, dict[str, Sign]] = {
            entity: {key: Sign(**sign) for key, sign in json.loads(row).items()} for entity, row in table.rows()
        }
        #: By name: entities that have signs.
        self._by_name: dict[str, dict[str, None]] = {}
        for entity in self._by_entity:
            self._name(entity)

    def take(self, condition: ConditionReport, now: float) -> bool:
        """Keeps a condition as a sign if it may concern several jobs; whether it may. Drops those long over. now: Unix
        seconds.
        """
        kind, name, entity = condition.entity_kind, condition.name, condition.entity
        if kind == "node" and name not in THROTTLES:
            return False
        if condition.tolerated:  # it blinked: that is no sign of anything
            self._drop(entity, f"{name}/{condition.device}")
            return False
        known = self._by_entity.setdefault(entity, {})
        known[f"{name}/{condition.device}"] = Sign(
            name=name,
            kind=kind,
            since=condition.since,
            until=condition.until,
            severity=condition.severity,
            text=condition.text[:300],
            trust="" if condition.trust is None else condition.trust.value,
        )
        for key in [k for k, sign in known.items() if sign.until is not None and sign.until < now - SIGN_KEPT_S]:
            del known[key]
        while len(known) > MAX_SIGNS_PER_ENTITY:
            del known[next((key for key, sign in known.items() if sign.until is not None), next(iter(known)))]
        self._write(entity)
        self._name(entity)
        while len(self._by_entity) > MAX_SIGNS:
            self._forget(next(iter(self._by_entity)))
        return True

    def of(self, name: str, kinds: frozenset[str], onset: float, window_s: float) -> list[Sign]:
        """Signs of what goes by this name, of these kinds (none of "node"), that lasted at ``onset`` or began near it;
        no mere information. Of the fabric as a whole several switches have to say it.

        name: of an entity, in full or short; of a file system that a server is a part of; or what is everybody's.
        """
        entities = self._by_name.get(_plain(name), {})
        found = [
            (entity, sign)
            for entity in entities
            for sign in self._by_entity.get(entity, {}).values()
            if sign.kind in kinds and sign.lasted_at(onset, window_s) and sign.severity != "info"
        ]
        if "fabric" in kinds and len({entity for entity, sign in found if sign.kind == "switch"}) < WHOLE_FABRIC:
            found = [(entity, sign) for entity, sign in found if sign.kind != "switch"]
        return [sign for _, sign in found]

    @property
    def are_any(self) -> bool:
        """Whether anything that several jobs may use, and no node, has a condition."""
        return bool(self._by_name)

    def _drop(self, entity: str, key: str) -> None:
        if self._by_entity.get(entity, {}).pop(key, None) is not None:
            self._write(entity)

    def _write(self, entity: str) -> None:
        known = self._by_entity.get(entity)
        if known:
            rows = {key: {field: getattr(sign, field) for field in Sign.__slots__} for key, sign in known.items()}
            self._table.put(entity, json.dumps(rows, separators=(",", ":")).encode())
        else:
            self._forget(entity)

    def _forget(self, entity: str) -> None:
        self._by_entity.pop(entity, None)
        self._table.delete(entity)
        for name in [name for name, entities in self._by_name.items() if entity in entities]:
            del self._by_name[name][entity]
            if not self._by_name[name]:
                del self._by_name[name]

    def _name(self, entity: str) -> None:
        """Under which names the entity is asked for its signs."""
        found = self._by_entity.get(entity, {})
        kinds = {sign.kind for sign in found.values()} - {"node"}
        if not kinds:
            return
        names = {_plain(entity), *(_plain(ONE_FOR_ALL[kind]) for kind in kinds if kind in ONE_FOR_ALL)}
        if "switch" in kinds:
            names.add(_plain(ONE_FOR_ALL["fabric"]))
        if "storage" in kinds:
            names |= {_plain(filesystem_of(key.partition("/")[2].partition("/")[0])) for key in found}
            names |= {_plain(service) for service in self._landscape.services_of(entity)}
            names.add(_plain(self._landscape.labels.get(entity, {}).get("storage", "")))
        for name in names - {""}:
            self._by_name.setdefault(name, {})[entity] = None

    def throttled(self, onset: float, window_s: float) -> set[str]:
        """Nodes whose GPUs were held back at ``onset``, or within ``window_s`` around it."""
        return {
            entity
            for entity, found in self._by_entity.items()
            if any(s.kind == "node" and s.name in THROTTLES and s.lasted_at(onset, window_s) for s in found.values())
        }

    def is_anything_throttled(self) -> bool:
        """Whether GPUs of any node are known to be, or to have lately been, held back."""
        return any(sign.name in THROTTLES for found in self._by_entity.values() for sign in found.values())


def _plain(name: str) -> str:
    """A host's name without its domain, in lower case; an address and any other name as it is."""
    first, dot, _ = name.lower().partition(".")
    return first if dot and not first.isdecimal() else name.lower()
