"""The desk at which incidents of all jobs are looked at together: what it hears, when it looks, what it decides.

Looks are taken by a timer a moment after something has changed, so that a storm of incidents is looked at once, and
the result depends on stamps alone. A job that is alone in its trouble, without a past, is never looked at: nothing of
it changes or waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ....telemetry.incident_document import EvidenceRow, IncidentLabel
from ....telemetry.records import Finding
from ...condition_document import ConditionReport
from ...doubts import Doubt, refused_labels, unknown_nodes
from ...placement_document import read_placement
from .history import Verdict, blame_of, note_check
from .joint import JointCause, joint_cause
from .looking import SETTLES_S, look_over, pool_of
from .memory import Memory
from .newcomers import begun_before
from .observers import clock_note
from .plans import GRACE_S, Plan, plan_row
from .same_end import known_before
from .standing import ended, let_stand, next_end, standing_leader
from .told import plan_of, read_change, read_load, read_places
from .troubles import Trouble
from .waiting import NOTHING, Wait, wait_for

#: After a change, so that what belongs together has come.
LOOK_AFTER_S = 2.0
#: While it goes on.
LOOK_AGAIN_S = 10.0
#: Unix seconds in floating point tell less than a microsecond apart; no two looks are nearer than this.
SOONEST_S = 0.1
#: No look is further away: what ends later, or never, is looked at in between.
_LATEST_S = 86_400.0
#: When no other page has come for so long, a page has waited enough.
QUIET_S = 5.0
#: A node's place is told so long after its first job at the latest.
PLACED_S = 60.0
_NOTHING_SAID = IncidentLabel()


@dataclass(slots=True, kw_only=True)
class Decisions:
    """By incident. joint: what those say that lead. into: the leader of those that merge; "" stands alone again.

    plans: the plan that lowers it, None no longer. released: pages that need not wait any more.
    """

    joint: dict[str, JointCause | None] = field(default_factory=dict)
    into: dict[str, str] = field(default_factory=dict)
    plans: dict[str, EvidenceRow | None] = field(default_factory=dict)
    #: What was over before it could merge: the leader that it is charged to.
    charged: dict[str, str] = field(default_factory=dict)
    #: Leaders all of whose members are over, and since when.
    over: dict[str, float] = field(default_factory=dict)
    notes: dict[str, EvidenceRow] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)

    @property
    def incidents(self) -> list[str]:
        """Ids of all incidents that a decision concerns, leaders first, so that what merges into them
        finds them told.
        """
        return list(
            dict.fromkeys(
                [*self.joint, *self.over, *self.into, *self.charged, *self.plans, *self.notes, *self.released]
            )
        )


class Desk:
    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        #: What is to be told of what cannot be so.
        self.doubts: list[Doubt] = []

    # --- what it hears ----------------------------------------------------------------------------------------------
    def take(self, finding: Finding, now: float) -> None:
        """Keeps a placement, topology, change, load or plan, and asks for a look where it may matter. now: Unix
        seconds.

        Raises KeyError, ValueError, TypeError or AttributeError for a body that is none.
        """
        memory, body = self.memory, finding.body
        if "placement" in body:
            report = read_placement(body["placement"])
            before = memory.placements.take(report)
            attempt = memory.placements.attempts[f"{report.job}\t{report.attempt}"]
            for doubt in memory.placements.doubts:
                self.doubt(doubt)
            memory.placements.doubts.clear()
            if memory.landscape.labels and any(node not in memory.landscape.labels for node in attempt.nodes):
                memory.expect_places(attempt.key, now + PLACED_S)
                self._look_soon(now, PLACED_S)
            if before is not None and before.end is not None:
                memory.sums.add_hours(before, before.end, sign=-1.0)
            if attempt.end is not None:
                memory.sums.add_hours(attempt, attempt.end)
            elif before is None and now - memory.stopped_at < SETTLES_S:
                self._look_soon(now)  # somebody was stopped just before: perhaps for this one
        elif "topology" in body:
            places = read_places(body["topology"])
            memory.landscape.take_places(places)
            for doubt in refused_labels(places.node, places.refused):
                self.doubt(doubt)
        elif "change" in body:
            memory.landscape.take_change(read_change(body["change"]))
        elif "load" in body:
            memory.landscape.take_load(read_load(body["load"]))
        elif "plan" in body:
            memory.put_plan(plan_of(body["plan"], finding.key, over=finding.cleared))
        memory.changed()
        if "topology" not in body and "placement" not in body and memory.open:
            self._look_soon(now)

    def doubt(self, doubt: Doubt) -> None:
        """Counts what cannot be so; the first time it is added to ``doubts``, to be told."""
        if self.memory.note_doubt(doubt):
            self.doubts.append(doubt)

    def take_condition(self, condition: ConditionReport, now: float) -> None:
        """Keeps a condition of an entity that several jobs may use, and asks for a look while troubles are open."""
        note_check(self.memory, condition)
        if self.memory.take_sign(condition, now) and self.memory.open:
            self._look_soon(now)

    def take_label(self, incident: str, label: IncidentLabel, now: float) -> None:
        """Keeps a person's word on an incident, counts blame anew by it, and asks for a look. now: Unix seconds."""
        memory = self.memory
        memory.put_label(incident, label)
        trouble = memory.troubles.get(incident)
        if trouble is not None:
            self._count_blame(trouble)
        memory.changed()
        self._look_soon(now)

    def note(self, trouble: Trouble, now: float, *, is_new: bool) -> Wait:
        """Keeps an incident of one job that has changed, and asks for a look where it may be shared.

        Until when (Unix seconds) it is held back from now on, and why; ``NOTHING``: it need not wait. is_new: just
        opened.
        """
        memory = self.memory
        begins_to_blame = trouble.blames
        before = memory.troubles.get(trouble.id)
        if before is not None:
            trouble.leader, trouble.cause = before.leader, before.cause
            trouble.held_until, trouble.opened = before.held_until, before.opened
            trouble.lowered, trouble.is_noted, trouble.blamed = before.lowered, before.is_noted, before.blamed
            trouble.is_fresh, trouble.repeats, trouble.stands = before.is_fresh, before.repeats, before.stands
            if trouble == before:
                return NOTHING
            trouble.is_fresh = True
            begins_to_blame = trouble.blames and not before.blames and not trouble.leader
        if before is None and (known := known_before(memory, trouble)) is not None:
            trouble.repeats = known.id
        memory.put(trouble)
        self._count_blame(trouble)
        wait = NOTHING
        if trouble.is_open and (is_new or begins_to_blame):
            wait = wait_for(memory, trouble, now, is_new=is_new)
            if wait[0] > trouble.held_until:
                trouble.held_until = wait[0]
                memory.put(trouble)
        if is_new and trouble.is_urgent:
            memory.note_opening(now, trouble.job)
        has_past = len(memory.troubles) > 1 or any(node in memory.landscape.versions for node in trouble.nodes)
        if has_past or memory.plans or memory.signs.are_any or trouble.held_until or begun_before(memory, trouble):
            self._look_soon(now)
        return wait

    def _count_blame(self, trouble: Trouble) -> None:
        label = self.memory.told.get(trouble.id, _NOTHING_SAID)
        cause = trouble.cause[:1]
        weights = blame_of(trouble, is_shared=bool(cause) and cause[0] not in ("lemon", "silent_corruption"))
        if label.wrong:
            weights = {}
        named = label.cause or ""
        if named.startswith("node=") and not label.wrong:
            weights = {named.removeprefix("node="): 1.0}
        elif named and not label.wrong:
            weights = {}  # a person knows a cause that is no node
        weights = {node: round(weight, 3) for node, weight in weights.items() if weight > 0}
        if weights != trouble.blamed:
            self.memory.sums.blame(trouble.id, trouble.job, weights, trouble.blamed, trouble.onset)
            trouble.blamed = weights
            self.memory.put(trouble)

    def _look_soon(self, now: float, after_s: float = LOOK_AFTER_S) -> None:
        due_ns = int((now + min(after_s, _LATEST_S)) * 1e9)
        if not self.memory.due_ns or due_ns < self.memory.due_ns or self.memory.due_ns <= int(now * 1e9):
            self.memory.set_due(due_ns)

    # --- when it looks ----------------------------------------------------------------------------------------------
    def look(self, now: float) -> Decisions:
        """Decides over all jobs, as things stand ``now`` (Unix seconds of the bus), and sets when the
        next look is due.
        """
        memory = self.memory
        memory.set_due(0)
        decisions = Decisions()
        pool = pool_of(memory, now)
        seen = look_over(memory, pool, now)
        self._join(seen.verdicts, seen.planned, pool, decisions, now)
        for leader, over in ended(memory, now).items():
            decisions.over[leader] = over
            let_stand(memory, memory.troubles[leader], stands=False)
        self._lower(seen.planned, pool, decisions)
        self._note_clocks(pool, decisions)
        self._release(decisions, now)
        self._doubt_unplaced(now)
        for trouble in pool:
            if trouble.is_fresh:
                trouble.is_fresh = False
                memory.put(trouble)
        self._look_again(pool, now, may_be_shared=seen.may_be_shared)
        return decisions

    def release(self, incident: str) -> Decisions:
        """Decides nothing over all jobs, and lets go of an incident that is held back for such a decision."""
        trouble = self.memory.troubles[incident]
        trouble.held_until = 0.0
        self.memory.put(trouble)
        return Decisions(released=[incident])

    # --- what follows -----------------------------------------------------------------------------------------------
    def _join(
        self,
        verdicts: Sequence[Verdict],
        planned: dict[str, Plan],
        pool: Sequence[Trouble],
        decisions: Decisions,
        now: float,
    ) -> None:
        memory, covered = self.memory, set[str]()
        for verdict in verdicts:
            members = [memory.troubles[id_] for id_ in dict.fromkeys(verdict.members) if id_ in memory.troubles]
            members = [t for t in members if t.id not in covered]
            leader = self._leader(members, verdict)
            if leader is None:
                continue
            let_stand(memory, leader, stands=verdict.rule.stays_s > 0 and verdict.decides)
            covered |= {t.id for t in members}
            members += self._still_joined(leader, covered, verdict)
            covered |= {t.id for t in members}
            members.sort(key=lambda t: (t.onset, t.id))
            cause = [verdict.rule.name, verdict.value]
            decisions.joint[leader.id] = joint_cause(verdict, members, memory)
            for trouble in members:
                # What is over as an incident of its own stays so; it is listed with its job.
                if trouble.is_open or trouble.leader or trouble is leader:
                    was_led_elsewhere = trouble.leader not in ("", leader.id)
                    is_news = memory.join(trouble, leader.id, cause)
                    if trouble is not leader and (is_news or was_led_elsewhere):
                        decisions.into[trouble.id] = leader.id
                    elif trouble is leader and was_led_elsewhere:
                        decisions.into[trouble.id] = ""
                    self._count_blame(trouble)
                else:
                    decisions.charged[trouble.id] = leader.id
        for trouble in pool:
            if trouble.leader and trouble.id not in covered:
                self._part(trouble, decisions)

    def _leader(self, members: Sequence[Trouble], verdict: Verdict) -> Trouble | None:
        """Who led before leads on, though it be over; else the culprit's own incident, else the first that is open."""
        memory = self.memory
        led = [memory.troubles[t.leader] for t in members if t.leader in memory.troubles and t.leader]
        led = [t for t in led if t in members or not t.is_open]
        if led:
            return min(led, key=lambda t: (t.opened, t.id))
        if (stands := standing_leader(memory, verdict)) is not None:
            return stands
        open_ones = [t for t in members if t.is_open]
        if not open_ones and verdict.rule.family == "preemption":
            open_ones = list(members)[-1:]
        if not open_ones:
            return None
        return min(open_ones, key=lambda t: (t.job != verdict.culprit, t.opened, t.onset, t.id))

    def _still_joined(self, leader: Trouble, covered: set[str], verdict: Verdict) -> list[Trouble]:
        """Members that are over stay members: a cause does not go away because its first victims are well again."""
        memory = self.memory
        ids = [id_ for id_ in memory.joined.get(leader.id, ()) if id_ not in covered and id_ in memory.troubles]
        return [memory.troubles[id_] for id_ in ids if not memory.troubles[id_].is_open]

    def _part(self, trouble: Trouble, decisions: Decisions) -> None:
        """The cause is no longer thought to explain it. What is over stays as it was told."""
        memory = self.memory
        members = [memory.troubles[id_] for id_ in memory.joined.get(trouble.leader, ()) if id_ in memory.troubles]
        if not trouble.is_open and not any(t.is_open for t in members):
            if not memory.troubles[trouble.leader].stands:
                decisions.over[trouble.leader] = max(float(t.resolved or 0.0) for t in [*members, trouble])
            return
        if not trouble.is_open and trouble.id != trouble.leader:
            return
        if trouble.id == trouble.leader:
            let_stand(memory, trouble, stands=False)
            decisions.joint[trouble.id] = None
        else:
            decisions.into[trouble.id] = ""
        memory.join(trouble, "", [])
        self._count_blame(trouble)

    def _lower(self, planned: dict[str, Plan], pool: Sequence[Trouble], decisions: Decisions) -> None:
        """An incident that was announced is lowered, and raised again when it outlasts its plan."""
        for trouble in pool:
            plan = planned.get(trouble.id)
            key = plan.key if plan is not None else ""
            if trouble.lowered != key and (plan is not None or trouble.is_open):
                trouble.lowered = key
                self.memory.put(trouble)
                decisions.plans[trouble.id] = None if plan is None else plan_row(plan)

    def _note_clocks(self, pool: Sequence[Trouble], decisions: Decisions) -> None:
        steps = self.memory.landscape.clocks
        if not steps:
            return
        for trouble in pool:
            note = None if trouble.is_noted else clock_note(trouble, steps)
            if note is not None:
                trouble.is_noted = True
                self.memory.put(trouble)
                decisions.notes[trouble.id] = note

    def _release(self, decisions: Decisions, now: float) -> None:
        """What has waited for nothing goes out now."""
        last = max((at for at, _ in self.memory.openings), default=0.0)
        for trouble in [self.memory.troubles[id_] for id_ in self.memory.held]:
            is_quiet = trouble.is_urgent and now >= last + QUIET_S
            if trouble.leader or now >= trouble.held_until - SOONEST_S or is_quiet:
                trouble.held_until = 0.0
                self.memory.put(trouble)
                decisions.released.append(trouble.id)

    def _doubt_unplaced(self, now: float) -> None:
        """Jobs on nodes whose places should have been told by now."""
        memory = self.memory
        for key, due in list(memory.unplaced.items()):
            if now >= due - SOONEST_S:
                memory.expect_places(key, None)
                attempt = memory.placements.attempts.get(key)
                for doubt in unknown_nodes(attempt.job, attempt.nodes, memory.landscape.labels) if attempt else ():
                    self.doubt(doubt)

    def _look_again(self, pool: Sequence[Trouble], now: float, *, may_be_shared: bool) -> None:
        if (end := next_end(self.memory)) is not None:
            self._look_soon(now, max(SOONEST_S, end - now))
        if self.memory.unplaced:
            self._look_soon(now, max(SOONEST_S, min(self.memory.unplaced.values()) - now))
        held = [self.memory.troubles[id_] for id_ in self.memory.held]
        if any(t.is_urgent for t in held):
            self._look_soon(now)
            return
        if held:
            self._look_soon(now, max(SOONEST_S, min(LOOK_AGAIN_S, *(t.held_until - now for t in held))))
            return
        open_jobs = {t.job for t in pool if t.is_open and not t.is_planned}
        newest = max((t.opened for t in pool), default=0.0)
        unsettled = may_be_shared or any(t.leader for t in pool)
        if unsettled and len(open_jobs) > 1 and now - newest < SETTLES_S:
            self._look_soon(now, max(LOOK_AGAIN_S, now - newest))
        ends = [
            p.end + GRACE_S for p in self.memory.plans.values() if p.end + GRACE_S > now and p.begin <= now + GRACE_S
        ]
        if ends and any(t.is_open for t in pool):
            self._look_soon(now, min(ends) - now + 1.0)
