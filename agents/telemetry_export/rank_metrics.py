"""Metrics of this node's ranks for people, and of the agent itself: summed up at each flush, told every few seconds.

Polling thread. Every operation and step counts, whatever is sampled elsewhere. Series per rank are few by design: one
histogram of steps, one per phase, one per group and operation up to a bound, a handful of numbers; what passes the
bound is told under one group called ``other``. An attempt is no attribute, so a restart begins no new series.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ...telemetry import attributes as names
from ...telemetry.histogram_table import HistogramTable
from ...telemetry.metric_encode import histogram_attributes, metric_entry, number_attributes, number_point
from ...telemetry.otlp_wire import AttributeValue, RequestBuilder, resource
from ...telemetry.records import Group, Identity
from ...telemetry.vocabulary import Op, Phase
from ..base.health import AgentHealth
from ..ranks.local_verdicts import oldest_open_age_ns
from ..ranks.watched_rank import WatchedRank
from ..reduction.collect_collectives import CollectedRows
from ..reduction.collect_steps import CollectedSteps

_NS_PER_S = 1e9
#: Histograms of one rank's collectives; with phases and single numbers a rank stays below 100 series.
MAX_COLLECTIVE_SERIES = 40
OTHER_GROUPS = "other"
#: Reasons for which an agent drops something; more are damage.
_MAX_REASONS = 32

#: World and rank: what stays over restarts. The world is told only where another one has the same rank: its usual name
#: is a port, another one after each start.
_Who = tuple[str, int]


class RankMetrics:
    """``see`` every flush, ``take`` a report."""

    def __init__(
        self,
        health: AgentHealth,
        identity: Identity,
        job_name: str,
        max_histograms: int,
        *,
        since_ns: int,
        more_health: Callable[[], Mapping[str, int | str]] = dict,
    ) -> None:
        """since_ns: monotonic; what ended earlier, and stands in a ring, was counted by an agent before this one.

        more_health: counters of the way to Kafka (``KafkaPublisher.stats``).
        """
        self._health = health
        self._since_ns = since_ns
        self._more_health = more_health
        self._identity = identity
        self._resource = resource(
            {
                names.SERVICE_NAME: job_name or identity.job or names.SCOPE_NAME,
                names.SERVICE_INSTANCE_ID: identity.node,
                names.HOST_NAME: identity.node,
                names.CLUSTER_ID: identity.cluster,
                names.RUN_ID: identity.run,
            }
        )
        self._own_resource = resource(
            {
                names.SERVICE_NAME: "whichrank-agent",
                names.SERVICE_INSTANCE_ID: identity.node,
                names.HOST_NAME: identity.node,
                names.CLUSTER_ID: identity.cluster,
            }
        )
        self._worlds: dict[tuple[str, int], str] = {}  # how the world of a rank is told, by its name
        self._steps = HistogramTable(max_histograms)
        self._phases = HistogramTable(max_histograms)
        self._collectives = HistogramTable(max_histograms)
        self._labels: dict[_Who, set[tuple[str, int]]] = {}  # groups and operations that have a histogram
        self._rows: dict[int, int] = {}  # row of the collectives' table by slot, group and operation in one number
        self._waits_s: dict[_Who, float] = {}
        self._final_waits: dict[_Who, bytes] = {}  # points of ranks that ended since the last report
        self._ended_steps: dict[_Who, int] = {}  # since the last report
        self._began_ns: dict[_Who, int] = {}  # Unix time at which a rank's counters began
        self._reported_ns = 0
        self._started_ns = 0

    def see(
        self,
        collected: CollectedRows,
        steps: CollectedSteps,
        groups: Sequence[Group],
        ranks: Sequence[WatchedRank],
        *,
        time_ns: int,
    ) -> None:
        """Adds the rows of one flush to the sums; group columns index ``groups``. time_ns: Unix."""
        self._started_ns = self._started_ns or time_ns
        by_slot = {rank.slot: rank for rank in ranks}
        for rank in ranks:
            self._began_ns.setdefault(self._who(rank), time_ns)
        new = steps.steps["end_ns"] >= self._since_ns
        if new.any():
            self._see_steps(steps.steps.compress(new), steps.steps_ring[new], by_slot, time_ns)
        done = (collected.rows["done_ns"] != 0) & (collected.rows["done_ns"] >= self._since_ns)
        if done.any():
            rows, ring = (
                (collected.rows, collected.ring) if done.all() else (collected.rows[done], collected.ring[done])
            )
            self._see_collectives(rows, ring, groups, by_slot, time_ns)

    def end(self, rank: WatchedRank, ranks: Sequence[WatchedRank], *, time_ns: int) -> None:
        """A ring was closed: the rank's series end with the next report, unless it goes on in another ring of
        ``ranks``.

        time_ns: Unix.
        """
        self._rows = {key: row for key, row in self._rows.items() if key >> 32 != rank.slot}
        who = self._who(rank)
        if any(self._who(other) == who for other in ranks):
            return
        self._final_waits[who] = self._wait_point(rank, time_ns)
        self._steps.end(who)
        for phase in Phase:
            self._phases.end((*who, int(phase)))
        for label in self._labels.pop(who, ()):
            self._collectives.end((*who, *label))
        for table in (self._waits_s, self._ended_steps, self._began_ns):
            table.pop(who, None)
        del self._worlds[rank.identity.world, rank.rank]

    def take(self, ranks: Sequence[WatchedRank], *, now_ns: int, time_ns: int, request_bytes: int) -> list[bytes]:
        """Encoded OTLP requests, each of about ``request_bytes`` at most, with one report.

        now_ns: monotonic, time_ns: Unix.
        """
        builder = RequestBuilder(names.SCOPE_NAME, request_bytes)
        entries = [
            metric_entry(name, points)
            for name, table in (
                (names.METRIC_STEP_DURATION, self._steps),
                (names.METRIC_PHASE_DURATION, self._phases),
                (names.METRIC_COLLECTIVE_DURATION, self._collectives),
            )
            if (points := table.points(time_ns))
        ]
        builder.add(self._resource, [*entries, *self._numbers(ranks, now_ns, time_ns)])
        builder.add(self._own_resource, self._of_the_agent(ranks, time_ns))
        self._reported_ns = time_ns
        return builder.take()

    # --- what is seen -------------------------------------------------------------------------------------------------
    def _see_steps(
        self, steps: NDArray[np.void], ring: NDArray[np.uint16], by_slot: dict[int, WatchedRank], time_ns: int
    ) -> None:
        durations_s = np.maximum(steps["end_ns"] - steps["begin_ns"], 0) / _NS_PER_S
        rows: list[int] = []
        phase_rows: list[int] = []
        phases_s: list[float] = []
        for slot, spent_ns in zip(ring.tolist(), steps["phase_ns"].tolist(), strict=True):
            rank = by_slot.get(slot)
            if rank is None:
                rows.append(-1)
                continue
            who = self._who(rank)
            self._ended_steps[who] = self._ended_steps.get(who, 0) + 1
            row = self._steps.known(who)
            if row is None:
                row = self._begin(self._steps, who, self._attributes(rank), time_ns)
            rows.append(row)
            for phase, phase_ns in enumerate(spent_ns):
                if phase_ns <= 0:
                    continue
                key = (*who, phase)
                row = self._phases.known(key)
                if row is None:
                    words = {**self._attributes(rank), names.PHASE: Phase(phase).name.lower()}
                    row = self._begin(self._phases, key, words, time_ns)
                phase_rows.append(row)
                phases_s.append(phase_ns / _NS_PER_S)
        self._steps.record(np.array(rows, np.intp), durations_s)
        self._phases.record(np.array(phase_rows, np.intp), np.array(phases_s))

    def _see_collectives(
        self,
        rows: NDArray[np.void],
        ring: NDArray[np.uint16],
        groups: Sequence[Group],
        by_slot: dict[int, WatchedRank],
        time_ns: int,
    ) -> None:
        keys = (ring.astype(np.int64) << 32) | (rows["group"].astype(np.int64) << 8) | rows["op"]
        unique, inverse = np.unique(keys, return_inverse=True)
        found = []
        for key in unique.tolist():
            row = self._rows.get(key)
            if row is None:
                rank = by_slot.get(key >> 32)
                row = (
                    -1
                    if rank is None
                    else self._find_collective(rank, groups[key >> 8 & 0xFFFFFF], key & 0xFF, time_ns)
                )
                self._rows[key] = row
            found.append(row)
        seconds = np.maximum(rows["done_ns"] - rows["enqueued_ns"], 0) / _NS_PER_S
        self._collectives.record(np.array(found, np.intp)[inverse], seconds)
        since_ns = np.maximum(rows["enqueued_ns"], rows["started_ns"])
        waits_s = np.maximum(rows["done_ns"] - since_ns, 0) / _NS_PER_S
        for slot, wait_s in enumerate(np.bincount(ring, weights=waits_s).tolist()):
            rank = by_slot.get(slot) if wait_s else None
            if rank is not None:
                self._waits_s[self._who(rank)] = self._waits_s.get(self._who(rank), 0.0) + wait_s

    def _find_collective(self, rank: WatchedRank, group: Group, op: int, time_ns: int) -> int:
        who = self._who(rank)
        labels = self._labels.setdefault(who, set())
        label = group.label
        if (label, op) not in labels and len(labels) >= MAX_COLLECTIVE_SERIES:
            label = OTHER_GROUPS
        labels.add((label, op))
        words = {
            **self._attributes(rank),
            names.GROUP_NAME: label,
            names.COLLECTIVE_OP: Op(op).name.lower() if op in Op.__members__.values() else Op.UNKNOWN.name.lower(),
        }
        return self._begin(self._collectives, (*who, label, op), words, time_ns)

    def _begin(
        self, table: HistogramTable, key: tuple[object, ...], words: dict[str, AttributeValue | None], time_ns: int
    ) -> int:
        row = table.series(key, histogram_attributes(words), time_ns)
        if row < 0:
            self._health.drop("histograms_over_limit")
        return row

    # --- what is told -------------------------------------------------------------------------------------------------
    def _numbers(self, ranks: Sequence[WatchedRank], now_ns: int, time_ns: int) -> list[bytes]:
        points: dict[str, list[bytes]] = {
            name: []
            for name in (
                names.METRIC_RANK_STEP,
                names.METRIC_RANK_PACE,
                names.METRIC_RANK_WAIT,
                names.METRIC_HEARTBEAT_AGE,
                names.METRIC_COLLECTIVE_OPEN_AGE,
            )
        }
        passed_s = (time_ns - self._reported_ns) / _NS_PER_S if self._reported_ns else 0.0
        for rank in ranks:
            self._final_waits[self._who(rank)] = self._wait_point(rank, time_ns)
        points[names.METRIC_RANK_WAIT] += self._final_waits.values()
        self._final_waits.clear()
        newest = {self._who(rank): rank for rank in ranks if rank.alive}
        for who, rank in newest.items():
            attributes = number_attributes(self._attributes(rank))
            step = rank.step_and_phase()[0]
            gauges = {
                names.METRIC_RANK_STEP: step if step >= 0 else None,
                names.METRIC_RANK_PACE: self._ended_steps.get(who, 0) / passed_s if passed_s > 0 else None,
                names.METRIC_HEARTBEAT_AGE: rank.heartbeat_age_ns(now_ns) / _NS_PER_S,
                names.METRIC_COLLECTIVE_OPEN_AGE: oldest_open_age_ns(rank, now_ns) / _NS_PER_S,
            }
            for name, value in gauges.items():
                if value is not None:
                    points[name].append(number_point(attributes, value, time_ns=time_ns))
        self._ended_steps.clear()
        return [metric_entry(name, of_metric) for name, of_metric in points.items() if of_metric]

    def _wait_point(self, rank: WatchedRank, time_ns: int) -> bytes:
        who = self._who(rank)
        return number_point(
            number_attributes(self._attributes(rank)),
            self._waits_s.get(who, 0.0),
            time_ns=time_ns,
            start_ns=self._began_ns.setdefault(who, time_ns),
        )

    def _of_the_agent(self, ranks: Sequence[WatchedRank], time_ns: int) -> list[bytes]:
        health = self._health
        words: dict[str, AttributeValue | None] = {
            names.JOB_ID: self._identity.job,
            names.NODE_ID: self._identity.node,
        }
        attributes = number_attributes(words)
        start_ns = self._started_ns or time_ns

        def counter(name: str, value: float, where: bytes = attributes) -> bytes:
            return metric_entry(name, [number_point(where, value, time_ns=time_ns, start_ns=start_ns)])

        drops = [
            number_point(number_attributes({**words, names.DROP_REASON: reason}), n, time_ns=time_ns, start_ns=start_ns)
            for reason, n in sorted(health.drops.items())[:_MAX_REASONS]
        ]
        # The way to Kafka is every job's of this agent.
        node = {names.NODE_ID: self._identity.node}
        more = self._more_health()
        for name, count in more.items():
            if ".dropped." in name and isinstance(count, int) and len(drops) < 2 * _MAX_REASONS:
                where = number_attributes({**node, names.DROP_REASON: name})
                drops.append(number_point(where, count, time_ns=time_ns, start_ns=start_ns))
        spooled = more.get("spool.bytes")
        spool = [] if spooled is None else [number_point(number_attributes(node), int(spooled), time_ns=time_ns)]
        return [
            metric_entry(names.METRIC_AGENT_RANKS, [number_point(attributes, len(ranks), time_ns=time_ns)]),
            counter(names.METRIC_AGENT_EVENTS_READ, health.events_read),
            counter(names.METRIC_AGENT_EVENTS_LOST, health.events_lost + health.events_torn),
            counter(names.METRIC_AGENT_SENT, health.bytes_sent),
            counter(names.METRIC_PROCESS_CPU_TIME, time.process_time(), attributes),
            *([metric_entry(names.METRIC_AGENT_SPOOL, spool)] if spool else []),
            *([metric_entry(names.METRIC_AGENT_DROPS, drops)] if drops else []),
        ]

    def _who(self, rank: WatchedRank) -> _Who:
        key = rank.identity.world, rank.rank
        word = self._worlds.get(key)
        if word is None:
            taken = ("", rank.rank) in [(known, number) for (_, number), known in self._worlds.items()]
            word = self._worlds[key] = key[0] if taken else ""
        return word, rank.rank

    def _attributes(self, rank: WatchedRank) -> dict[str, AttributeValue | None]:
        return {
            names.JOB_ID: self._identity.job,
            names.WORLD: self._who(rank)[0],
            names.NODE_ID: self._identity.node,
            names.RANK: rank.rank,
        }
