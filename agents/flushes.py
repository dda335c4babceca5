"""Flushes of one job's rings: when one is due, and what a flush brings in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ..telemetry.records import Identity
from ..telemetry.vocabulary import EventName
from .base.health import AgentHealth
from .base.settings import AgentSettings
from .publish.shipper import Shipper
from .rank_looks import RankLooks
from .ranks.drain import Drained, drain_rings
from .ranks.inferred_steps import InferredSteps
from .ranks.local_verdicts import to_ns
from .ranks.pending_events import PendingEvents
from .ranks.rank_events import bad_loss_attributes, checkpoints_named, level_changes
from .ranks.save_events import saves_told
from .ranks.watched_rank import WatchedRank
from .reduction.block_builder import BlockBuilder
from .reduction.coarse_rows import coarse
from .reduction.definitions import Definitions
from .reduction.large_jobs import SELDOM_HEALTH, GroupLists, is_large
from .telemetry_export.observability_export import ObservabilityExport

_CLOCK_STEP_NS = 10_000_000
#: Of all jobs of a node together one flush in so long, up to the period of progress: each costs a millisecond or two,
#: however little it brings. What is urgent does not wait for it.
_PER_JOB_S = 0.1
#: Where there are several jobs each tells its counters so much less often, at most.
_SELDOM_HEALTH = 3


class Flushes:
    """Owned by the polling thread. people: spans and metrics for people; None: nobody gets any."""

    def __init__(
        self,
        settings: AgentSettings,
        health: AgentHealth,
        identity: Identity,
        job_name: str,
        *,
        pending: PendingEvents,
        looks: RankLooks,
        shipper: Shipper,
        more_health: Callable[[], Mapping[str, int | str]],
        monotonic_ns: Callable[[], int],
        wall_ns: Callable[[], int],
    ) -> None:
        self._settings, self._health = settings, health
        self._pending, self._looks, self._shipper = pending, looks, shipper
        self._monotonic_ns, self._wall_ns = monotonic_ns, wall_ns
        self.blocks = BlockBuilder(
            health, settings.open_rows, single_phases=settings.tell_people, withheld=settings.withheld
        )
        self.definitions = Definitions(pending, self.blocks, health)
        self._job_name, self._more_health = job_name, more_health
        self.people: ObservabilityExport | None = None
        self.tell_people_of(identity)
        self._inferred_steps, self._group_lists = InferredSteps(), GroupLists()
        self.next_flush_ns = self.next_progress_ns = 0
        #: How many jobs of this owner are watched on this node, this one included, and how many other owners.
        self.jobs_here = 1
        self._step_at_flush = (0, monotonic_ns())  # highest step of any rank, and when

    def tell_people_of(self, identity: Identity) -> None:
        """Begins spans and metrics anew under this node's identity; nothing where people are told none."""
        if self._settings.tell_people:
            self.people = ObservabilityExport(
                self._settings,
                self._health,
                identity,
                self._job_name,
                self._shipper.send_to_people,
                since_ns=self._monotonic_ns(),
                more_health=self._more_health,
            )

    def flush(self, ranks: Sequence[WatchedRank], now_ns: int, *, with_progress: bool) -> None:
        """Drains all rings and ships definitions, collectives, steps, progress, then events; sets when the next is due.

        with_progress: with a row of progress for each rank. now_ns: monotonic.
        """
        settings = self._settings
        self._pending.urgent = False
        period_s = settings.fast_flush_period_s if self._steps_are_short(ranks, now_ns) else settings.flush_period_s
        period_s = max(period_s, min(_PER_JOB_S * self.jobs_here, settings.progress_period_s))
        if self.is_large(ranks) and period_s == settings.flush_period_s:
            period_s = settings.progress_period_s
        self.next_flush_ns = now_ns + to_ns(period_s - settings.look_period_s / 2)
        if with_progress:
            self.next_progress_ns = now_ns + to_ns(settings.progress_period_s - settings.look_period_s / 2)
        offset_ns = self._wall_ns() - self._monotonic_ns()
        if abs(offset_ns - self._pending.clock_offset_ns) > _CLOCK_STEP_NS:
            self._pending.clock_offset_ns = offset_ns
        self.ship(ranks, drain_rings(ranks, self._health), now_ns, with_progress=with_progress)

    def ship(self, ranks: Sequence[WatchedRank], drained: Drained, now_ns: int, *, with_progress: bool) -> None:
        """Ships all that waits to be told around the blocks made of ``drained``; now_ns: monotonic.

        with_progress: with a row of progress for each rank.
        """
        for rank in ranks:
            self.definitions.read(rank, ranks, now_ns)
            if with_progress:
                rank.groups.parse(rank.page)
                self._looks.announce_slow(rank, now_ns)
        self._pending.urgent = False  # what would have been announced is in this flush
        drained = self._inferred_steps.add_steps(ranks, drained)
        for bad in self._inferred_steps.take_bad_losses():
            attributes = bad_loss_attributes(bad)
            self._pending.behind_blocks(EventName.RANK_BAD_LOSS, bad.rank.identity, bad.time_ns, attributes)
        if len(drained.events):
            self._report_levels(ranks, drained)
        offset_ns = self._pending.clock_offset_ns
        see = None
        if self.people is not None:
            see = partial(self.people.see, ranks=ranks, clock_offset_ns=offset_ns, now_ns=now_ns)
        blocks = self.blocks.build(
            ranks,
            drained,
            progress_at_ns=now_ns if with_progress else 0,
            clock_offset_ns=offset_ns,
            time_ns=now_ns + offset_ns,
            see=see,
        )
        before, behind = self._pending.take()
        if self.is_large(ranks):
            blocks = [coarse(block, now_ns) for block in blocks]
            packing = self._group_lists.packing(blocks, now_ns)
            self._shipper.ship([*before, *blocks, *behind], packing, self._group_lists.lists)
        else:
            self._shipper.ship([*before, *blocks, *behind])
        self.tell_people(ranks, now_ns, everything=False)

    def tell_people(self, ranks: Sequence[WatchedRank], now_ns: int, *, everything: bool) -> None:
        """Spans and metrics that are due, where somebody gets them. everything: also what is not due yet."""
        if self.people is not None:
            offset_ns = self._pending.clock_offset_ns
            self.people.tell(ranks, clock_offset_ns=offset_ns, now_ns=now_ns, everything=everything)

    def forget(self, rank: WatchedRank, others: Sequence[WatchedRank]) -> None:
        """Forgets a rank whose exit has been shipped: another ring may take its slot.

        others: the ranks that are still watched.
        """
        self.blocks.forget_ring(rank)
        self._inferred_steps.forget(rank.slot)
        if self.people is not None:
            self.people.forget(rank, others, time_ns=self._wall_ns())

    def health_every(self, ranks: Sequence[WatchedRank]) -> int:
        """How many periods lie between two health events of this job.

        Where ranks live, their progress is the sign of life; and much of it is the node's own, told by every job.
        """
        if self.is_large(ranks):
            return SELDOM_HEALTH
        return min(self.jobs_here, _SELDOM_HEALTH) if ranks else 1

    @staticmethod
    def is_large(ranks: Sequence[WatchedRank]) -> bool:
        """Whether these are ranks of a large job, of which is told less often, and in one message a flush."""
        return any(is_large(rank.ring.header.world_size) for rank in ranks)

    def _steps_are_short(self, ranks: Sequence[WatchedRank], now_ns: int) -> bool:
        """By the steps that the fastest rank has made since the last flush."""
        steps = [rank.step_and_phase()[0] for rank in ranks]
        step, (before, before_ns) = max(steps, default=0), self._step_at_flush
        self._step_at_flush = (step, now_ns)
        return step > before and now_ns - before_ns < (step - before) * to_ns(self._settings.fast_step_s)

    def _report_levels(self, ranks: Sequence[WatchedRank], drained: Drained) -> None:
        by_slot = {rank.slot: rank for rank in ranks}
        for rank, time_ns, attributes in level_changes(drained, by_slot):
            self._pending.before_blocks(EventName.RANK_LEVEL, rank.identity, time_ns, attributes)
        for rank, time_ns, attributes in checkpoints_named(drained, by_slot):
            self._pending.before_blocks(EventName.RANK_CHECKPOINT, rank.identity, time_ns, attributes)
        for rank, time_ns, attributes in saves_told(drained, by_slot):
            self._pending.before_blocks(EventName.CHECKPOINT_STATE, rank.identity, time_ns, attributes)
