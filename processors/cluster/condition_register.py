"""The conditions of all entities, as EntityOperator last told them, and which of them may concern an incident.

A row per entity, one per job with the entities whose conditions have named ranks of it, one per node with the jobs
that had a suspect there, and one per node with what is seen of it at all.
"""

from __future__ import annotations

import json
from dataclasses import replace

from ...telemetry.records import Finding
from ..condition_document import ConditionReport, read_condition
from ..operator import Context, Table
from .case import Case
from .held_conditions import EntityConditions, HeldConditions, halved, read_row
from .listed_names import read_names

#: Tables.
_CONDITIONS, _CONCERNED, _SUSPECTED, _WATCHED = "conditions", "concerned", "suspected", "watched"
#: What is over for longer explains nothing any more.
KEPT_S = 3600.0
MAX_PER_ENTITY = 256
MAX_ENTITIES_PER_JOB = 4096
MAX_JOBS_PER_NODE = 32
#: Of one incident.
MAX_PER_CASE = 24
#: So many conditions are asked whether they concern an incident: those of its suspects' nodes first.
MAX_ASKED = 8192
#: Of one condition, how often it came.
MAX_SPELLS = 8


class ConditionRegister:
    """Over four tables of one cluster's state. held: working copies of all clusters, and how large their rows are."""

    def __init__(
        self, cluster: str, entities: Table, jobs: Table, suspected: Table, watched: Table, held: HeldConditions
    ) -> None:
        self._cluster = cluster
        self._entities = entities
        self._held = held
        self._jobs = jobs
        self._suspected = suspected
        self._watched = watched

    def take_watch(self, finding: Finding) -> None:
        """Keeps which collectors look at a node, as the finding tells; forgets the node where none does."""
        watch = finding.body["watch"]
        if watch["sees"]:
            self._watched.put(str(watch["entity"]), json.dumps(watch["sees"]).encode())
        else:
            self._watched.delete(str(watch["entity"]))

    def watched(self, case: Case) -> dict[str, list[str]]:
        """By node of the case's suspects, the names of collectors that look at it; [] where none does."""
        nodes = {suspect.node for suspect in case.primary.suspects if suspect.node}
        return {node: read_names(self._watched.get(node)) for node in sorted(nodes)}

    def take(self, finding: Finding, now_ns: int) -> ConditionReport:
        """Keeps the condition that a finding tells, drops those of its entity that are long over, and returns it.

        now_ns: Unix.
        """
        condition = read_condition(finding.body["condition"])
        entity = condition.entity
        before = self._of(entity)
        known = dict(before.known)
        _put(known, finding.key, condition)
        oldest = now_ns / 1e9 - KEPT_S
        kept = {k: c for k, c in known.items() if c.until is None or c.until > oldest}
        for key in sorted(kept, key=lambda k: kept[k].last)[: max(0, len(kept) - MAX_PER_ENTITY)]:
            del kept[key]
        self._write(entity, before.changed_to(kept))
        self._make_room()
        for job in {rank.job for rank in condition.ranks}:
            self._note(job, entity)
        return condition

    def end_all(self, entity: str, now_s: float) -> list[ConditionReport]:
        """Ends what stands of an entity, of which what was known was set aside; returns what it ended. now_s: Unix."""
        before = self._of(entity)
        ended = {key: replace(each, until=now_s) for key, each in before.known.items() if each.until is None}
        self._write(entity, before.changed_to({**before.known, **ended}))
        return list(ended.values())

    def about(self, case: Case) -> list[ConditionReport]:
        """Conditions that may concern the case, at most MAX_PER_CASE, oldest first.

        Of the suspects' nodes, and of entities that concern the job; those nearest to the onset are kept.
        """
        onset = case.primary.onset_s
        nodes = {suspect.node for suspect in case.primary.suspects if suspect.node}
        others = set(read_names(self._jobs.get(case.job))) - nodes
        found: list[ConditionReport] = []
        for entity in (*sorted(nodes), *sorted(others)):
            if len(found) < MAX_ASKED:
                found += self._of(entity).known.values()
        # In a large job something is always the matter somewhere: the suspects' own nodes go first.
        found.sort(key=lambda c: (c.entity not in nodes, c.severity == "info", _distance_s(c, onset), c.name))
        return sorted(found[:MAX_PER_CASE], key=_order)

    def note_suspects(self, case: Case) -> None:
        """Notes the case's job at the nodes of its suspects, for ``suspected_at``."""
        for node in {suspect.node for suspect in case.primary.suspects if suspect.node}:
            jobs = read_names(self._suspected.get(node))
            if case.job not in jobs:
                self._suspected.put(node, json.dumps([*jobs, case.job][-MAX_JOBS_PER_NODE:]).encode())

    def suspected_at(self, node: str) -> set[str]:
        """Jobs with an incident that suspects somebody on this node."""
        return set(read_names(self._suspected.get(node)))

    def forget(self, job: str) -> None:
        """Drops the job from the register, as its incidents are forgotten; conditions stay."""
        self._jobs.delete(job)
        for node, row in list(self._suspected.rows()):
            jobs = read_names(row)
            if job in jobs:
                jobs.remove(job)
                if jobs:
                    self._suspected.put(node, json.dumps(jobs).encode())
                else:
                    self._suspected.delete(node)

    def _of(self, entity: str) -> EntityConditions:
        """Read from its row once, for as long as that is what the row says."""
        row = self._entities.get(entity)
        if not row:
            return EntityConditions()
        held = self._held.get(self._cluster, entity)
        if held is None or held.row != row:
            held = read_row(row)
            self._held.hold(self._cluster, entity, held)
        return held

    def _write(self, entity: str, conditions: EntityConditions) -> None:
        if conditions.known:
            self._entities.put(entity, conditions.row)
        else:
            self._entities.delete(entity)
        self._held.hold(self._cluster, entity, conditions)

    def _make_room(self) -> None:
        """Who has most gives most: no entity's conditions are pushed out by those of others that have more."""
        for entity, most_bytes in self._held.too_large(self._cluster, self._entities).items():
            kept = self._of(entity)
            while len(kept.row) > most_bytes:
                kept = halved(kept)
            self._write(entity, kept)

    def _note(self, job: str, entity: str) -> None:
        row = self._jobs.get(job) or b"[]"
        name = json.dumps(entity).encode()
        if b"[" + name not in row and b", " + name not in row:  # a large job's list is dear to read
            self._jobs.put(job, json.dumps([*read_names(row), entity][-MAX_ENTITIES_PER_JOB:]).encode())


def _put(known: dict[str, ConditionReport], key: str, condition: ConditionReport) -> None:
    """A condition that comes again does not take back what it explained before: its last few spells are kept.

    Of plans that is what was due before the plan was changed.
    """
    spells = [name for name in known if name.startswith(f"{key}@")]
    for name in spells:
        is_changed = condition.planned and known[name].since > condition.known
        if is_changed or _is_same_spell(known[name], condition):
            del known[name]
        elif known[name].until is None:
            known[name] = replace(known[name], until=known[name].last + known[name].lasts_s)
    known[f"{key}@{condition.since:.3f}"] = condition
    spells = sorted((name for name in known if name.startswith(f"{key}@")), key=lambda name: known[name].since)
    for name in spells[:-MAX_SPELLS]:
        del known[name]


def _is_same_spell(known: ConditionReport, condition: ConditionReport) -> bool:
    if condition.is_state or (condition.planned and condition.source == "scheduler"):
        return known.since == condition.since
    silence_s = condition.before_s
    return known.since <= condition.last + silence_s and condition.since <= known.last + silence_s


def _distance_s(condition: ConditionReport, onset: float) -> float:
    """From the trouble; 0 of what is measured to last over it."""
    since = condition.since
    return 0.0 if condition.until is None and not condition.lasts_s and since <= onset else abs(since - onset)


def _order(condition: ConditionReport) -> tuple[float, str, str]:
    return condition.since, condition.name, condition.device


def register_of(ctx: Context, held: HeldConditions) -> ConditionRegister:
    """The register over the context's tables. held: working copies, which outlive the record that is taken."""
    entities, jobs, suspected, watched = map(ctx.state.table, (_CONDITIONS, _CONCERNED, _SUSPECTED, _WATCHED))
    return ConditionRegister(ctx.key, entities, jobs, suspected, watched, held)
