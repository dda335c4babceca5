"""EntityOperator: turns what a node, a switch or a storage server tells into conditions with a beginning and an end.

Pure. One key per entity; its state is one row. Each change of a condition is a finding for the ClusterOperator, which
alone knows what it means for jobs. Repeats of a signal are told again at the 2nd, 4th, 8th ... time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace

from ...telemetry.records import Event, Finding, Identity, Record, Samples
from ...telemetry.topics import TOPIC_FINDINGS
from ...telemetry.trust import Trust
from ...telemetry.vocabulary import EventName
from ..condition_document import AffectedRank, ConditionReport, write_condition
from ..older_sentences import event_of_condition
from ..operator import Context, Timer
from .condition_rules import Rules
from .conditions import Condition, EntityState
from .event_signals import take_event
from .loads import take_loads
from .metrics import take_samples
from .rules import load_rules
from .series import Asked, AskedOf
from .server_loads import take_server_loads
from .signal_repeats import take_repeats
from .surroundings import EVENTS, findings_of, load_finding
from .watch import news_of_watching, next_look_s, take_watching

_EVENTS = frozenset(
    {
        EventName.KERNEL_EVENT,
        EventName.DEVICE_EVENT,
        EventName.PROBE_LATE,
        EventName.NODE_CONDITION,
        EventName.RANK_PROCESS,
        EventName.JOB_LOG,
        EventName.SCHEDULER,
        EventName.RANK_DEVICE,
        EventName.RANK_STARTED,
        *EVENTS,
    }
)
_EXPIRE, _UNWATCHED = "expire", "unwatched"
_STATE, _STILL, _VERSION = "state", "still", "version"
#: Unix seconds in a double are exact to a quarter of a microsecond: a timer that fires that much too early finds
#: nothing to do, and would be set to the same time for ever.
_TIMER_SLACK_NS = 1_000
#: Entities that are held beside their rows, those heard of last.
MAX_HELD = 4_096
#: A condition that is over is remembered for so long, for how often it came back.
REMEMBERED_S = 3600.0
#: Fields of a condition that are reported as they are; what it remembers for itself is not.
_APART = frozenset({"openings", "told", "ends", "opened_by", "explains", "event", "trust"})
_REPORTED_AS_IS = tuple(each.name for each in fields(Condition) if each.name not in _APART)


class EntityOperator:
    """Conditions of entities. One instance serves all; working copies are checked against the rows at every call."""

    name = "entity"
    contains_itself = False
    keys_are_jobs = False
    #: An entity takes 4 kB.
    most_keys = 65_536

    def __init__(self, rules: Rules | None = None) -> None:
        self._rules = rules or load_rules()
        self._asked_of = AskedOf(self._rules)
        self._states: dict[str, tuple[bytes, EntityState]] = {}

    def forget(self, ctx: Context) -> None:
        """Deletes what is known of the entity; its conditions end when they are no longer told."""
        for name in ("entity", "who"):
            table = ctx.state.table(name)
            for row, _ in list(table.rows()):
                table.delete(row)
        ctx.clear_timer(_EXPIRE)
        ctx.clear_timer(_UNWATCHED)
        self.let_go(ctx.key)

    def spare(self, ctx: Context) -> bool:
        """Never asked: ``forget`` ends what there is."""
        return False

    def let_go(self, key: str) -> None:
        """Drops the entity's state from memory; its saved rows stay, and the next record loads them."""
        self._states.pop(key, None)

    def key_of(self, record: Record) -> str | None:
        """KIND:NAME of the entity that a record is about; None of all else."""
        payload = record.payload
        if isinstance(payload, Samples):
            return f"{payload.entity}:{payload.identity.node}" if payload.identity.node else None
        if isinstance(payload, Event) and payload.name in _EVENTS and payload.identity.node:
            return f"node:{payload.identity.node}"
        return None

    def process(self, records: Sequence[Record], ctx: Context) -> None:
        """Takes events and samples of one entity; emits what they change as findings, and saves the entity."""
        state = self._load(ctx)
        for record in records:
            payload = record.payload
            if isinstance(payload, Samples):
                asked = self._asked_of(payload)
                self._report(take_samples(state, payload, asked), state, payload.identity, ctx)
                take_watching(state, payload, asked, ctx.now / 1e9)
                self._emit_loads(state, payload, asked, record.stamp_ns, ctx)
                self._tell_watching(state, ctx)
            elif isinstance(payload, Event):
                state.has_news = True
                changed = take_event(state, payload, self._rules)
                changed += take_repeats(state, payload, changed, self._rules)
                self._report(changed, state, payload.identity, ctx)
                self._emit_findings(
                    findings_of(payload, ctx.key.partition(":")[0], record.stamp_ns), record.stamp_ns, ctx
                )
        self._save(state, ctx)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Ends conditions of which nothing was heard for long, and drops old ones; or tells that a node is no longer
        watched.
        """
        state = self._load(ctx)
        now_s = ctx.now / 1e9
        if timer.name == _UNWATCHED:
            self._tell_watching(state, ctx)
            self._save(state, ctx)
            return
        over = [c for c in state.conditions.values() if c.until is None and c.lasts_s and now_s >= c.last + c.lasts_s]
        for condition in over:
            condition.until = condition.last + condition.lasts_s
        self._report(over, state, Identity(node=ctx.key.partition(":")[2], cluster=self._cluster(ctx)), ctx)
        for condition in list(state.conditions.values()):
            if condition.until is not None and now_s >= condition.until + REMEMBERED_S:
                del state.conditions[condition.key]
        self._save(state, ctx)

    def _report(self, changed: Iterable[Condition], state: EntityState, identity: Identity, ctx: Context) -> None:
        if identity.cluster and ctx.state.table("who").get("cluster") != identity.cluster.encode():
            ctx.state.table("who").put("cluster", identity.cluster.encode())
        kind, _, entity = ctx.key.partition(":")
        # Other people's exporters know nothing of clusters: the node's agent does.
        who = Identity(cluster=identity.cluster or self._cluster(ctx), node=entity)
        for condition in {c.key: c for c in changed}.values():
            if condition.until is None and condition.told and condition.count < 2 * condition.told:
                continue
            condition.told = condition.count
            told = ConditionReport(
                **{name: getattr(condition, name) for name in _REPORTED_AS_IS},
                entity=entity,
                entity_kind=kind,
                trust=Trust(condition.trust) if condition.trust else None,
                explains=tuple(condition.explains),
                event=event_of_condition({"name": condition.name, "event": condition.event}),
                ranks=tuple(state.ranks_on(condition)),
                others=_others(condition, state),
                tolerated=condition.is_tolerated,
                is_state=condition.is_state,
            )
            finding = Finding(
                identity=who,
                key=f"condition/{kind}:{entity}/{condition.key}",
                cleared=condition.until is not None,
                time_ns=ctx.now,
                body={"condition": write_condition(told)},
            )
            ctx.emit(Record(topic=TOPIC_FINDINGS, key=who.cluster, stamp_ns=ctx.now, payload=finding))

    def _emit_loads(self, state: EntityState, samples: Samples, asked: Asked, now_ns: int, ctx: Context) -> None:
        if asked.loads:
            kind = ctx.key.partition(":")[0]
            points = [samples.points[place] for place in asked.loads]
            told = [*take_loads(state, points), *take_server_loads(state, points)]
            self._emit_findings((load_finding(load, samples.identity, kind, now_ns) for load in told), now_ns, ctx)

    def _emit_findings(self, found: Iterable[Finding], now_ns: int, ctx: Context) -> None:
        for finding in found:
            ctx.emit(Record(topic=TOPIC_FINDINGS, key=finding.identity.cluster, stamp_ns=now_ns, payload=finding))

    def _tell_watching(self, state: EntityState, ctx: Context) -> None:
        said = news_of_watching(state, ctx.now / 1e9)
        if said is None:
            return
        kind, _, entity = ctx.key.partition(":")
        who = Identity(cluster=self._cluster(ctx), node=entity)
        body = {"watch": {"entity": entity, "entity_kind": kind, **said}}
        finding = Finding(identity=who, key=f"watch/{ctx.key}", cleared=False, time_ns=ctx.now, body=body)
        ctx.emit(Record(topic=TOPIC_FINDINGS, key=who.cluster, stamp_ns=ctx.now, payload=finding))

    def _cluster(self, ctx: Context) -> str:
        return (ctx.state.table("who").get("cluster") or b"").decode()

    # --- state --------------------------------------------------------------------------------------------------------
    def _load(self, ctx: Context) -> EntityState:
        table = ctx.state.table("entity")
        version = table.get(_VERSION) or b""
        known = self._states.get(ctx.key)
        if known is not None and known[0] == version:
            return known[1]
        row = table.get(_STATE)
        return EntityState.unpack(row, table.get(_STILL)) if row else EntityState()

    def _save(self, state: EntityState, ctx: Context) -> None:
        table = ctx.state.table("entity")
        version = b"%d" % (int(table.get(_VERSION) or 0) + 1)
        table.put(_VERSION, version)
        table.put_later(_STATE, state.pack)
        if state.has_news or len(state.series) != state.kept_series:
            table.put_later(_STILL, state.pack_still)
            state.has_news, state.kept_series = False, len(state.series)
        self._states.pop(ctx.key, None)
        self._states[ctx.key] = (version, state)
        if len(self._states) > MAX_HELD:
            del self._states[next(iter(self._states))]
        ends = [c.last + c.lasts_s for c in state.conditions.values() if c.until is None and c.lasts_s]
        ends += [c.until + REMEMBERED_S for c in state.conditions.values() if c.until is not None]
        if ends:
            ctx.set_timer(_EXPIRE, int(min(ends) * 1e9) + _TIMER_SLACK_NS)
        else:
            ctx.clear_timer(_EXPIRE)
        unwatched_s = next_look_s(state)
        if unwatched_s is not None:
            ctx.set_timer(_UNWATCHED, int(unwatched_s * 1e9) + _TIMER_SLACK_NS)
        else:
            ctx.clear_timer(_UNWATCHED)


def _others(condition: Condition, state: EntityState) -> tuple[AffectedRank, ...]:
    """Who else is known to use devices of this kind: to them the condition is nothing."""
    if condition.device_kind != "gpu":
        return ()
    return tuple(
        replace(state.ranks[pid], device=device)
        for device, pids in state.devices.items()
        if device != condition.gpu
        for pid in pids
        if pid in state.ranks
    )
