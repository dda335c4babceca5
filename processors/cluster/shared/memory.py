"""All that the cluster operator remembers over jobs: a working copy of the rows of its tables, and its indexes.

``ClusterOperator`` keeps one per cluster; it is made anew whenever the rows say that it is not current.
"""

from __future__ import annotations

import bisect
import json
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from ....telemetry.incident_document import IncidentLabel
from ....telemetry.incident_reading import read_label
from ....telemetry.incident_writing import write_label
from ...condition_document import ConditionReport
from ...doubts import Doubt
from ...operator import Context
from .landscape import Landscape
from .placements import KEPT_S, Placements
from .plans import Plan
from .signs import Signs
from .sums import Sums
from .troubles import Trouble

MAX_TROUBLES = 16_384
MAX_PLANS = 1_024
MAX_DOUBTED = 256
_MISC = "shared"
_TABLES = (
    _MISC, "placements", "labels", "versions", "loads", "job_loads", "sums", "troubles", "signs", "plans", "told",
)  # fmt: skip
StepKey = tuple[str, int, str, str]
_K = TypeVar("_K")


class Memory:
    def __init__(self, ctx: Context) -> None:
        table = ctx.state.table
        self._misc = table(_MISC)
        self.version = int(self._misc.get("version") or 0)
        self.placements = Placements(table("placements"))
        self.landscape = Landscape(table("labels"), table("versions"), table("loads"), table("job_loads"))
        self.sums = Sums(table("sums"), self.note_problem)
        self._troubles, self._plans, self._labels = map(table, ("troubles", "plans", "told"))
        self.troubles: dict[str, Trouble] = {}
        self.open: dict[str, Trouble] = {}
        #: By run (else job): ids, in order of opening.
        self.by_run: dict[str, list[str]] = {}
        #: By ``step_key``: ids.
        self.by_step: dict[StepKey, dict[str, None]] = {}
        #: By leader: those that have joined it, itself among them.
        self.joined: dict[str, dict[str, None]] = {}
        #: Onsets and ids, in order; ids of those that have changed since the last look; of those that are held back.
        self._by_onset: list[tuple[float, str]] = []
        self.fresh: dict[str, None] = {}
        self.held: dict[str, None] = {}
        for _, row in sorted(self._troubles.rows(), key=lambda each: Trouble.unpack(each[1]).opened):
            self._index(Trouble.unpack(row))
        self.signs = Signs(table("signs"), self.landscape)
        self.plans = {key: Plan(**json.loads(row)) for key, row in self._plans.rows()}
        #: People's words on incidents.
        self.told: dict[str, IncidentLabel] = {
            id_: label for id_, row in self._labels.rows() if (label := read_label(json.loads(row))) is not None
        }
        #: (stamp in s, job) of the last page-worthy openings.
        self.openings: deque[tuple[float, str]] = deque(
            ((float(at), str(job)) for at, job in json.loads(self._misc.get("openings") or b"[]")), maxlen=1024
        )
        self.problems: dict[str, int] = json.loads(self._misc.get("problems") or b"{}")
        #: What was doubted before, so that it is told once.
        self._doubted: dict[str, None] = dict.fromkeys(json.loads(self._misc.get("doubted") or b"[]"))
        #: By attempt: by when the places of its nodes must have been told.
        self.unplaced: dict[str, float] = json.loads(self._misc.get("unplaced") or b"{}")
        self._fitting: dict[str, tuple[Trouble, frozenset[str]]] = {}
        #: When a job was last stopped as planned (Unix seconds of the bus).
        self.stopped_at = max((t.opened for t in self.troubles.values() if t.is_planned), default=0.0)
        self.due_ns = int(self._misc.get("due") or 0)

    @classmethod
    def current(cls, known: Memory | None, ctx: Context) -> Memory:
        """``known`` if it is what the rows say, else a new copy of them; an empty one where they cannot be read."""
        try:
            version = int(ctx.state.table(_MISC).get("version") or 0)
            return known if known is not None and known.version == version else cls(ctx)
        except (KeyError, TypeError, ValueError, AttributeError):
            # Each job's incidents do not need it: they must not go down with it. It is kept, and made anew.
            for name in _TABLES:
                table, aside = ctx.state.table(name), ctx.state.table(f"aside.{name}")
                for row, value in list(table.rows()):
                    aside.put(row, value)
                    table.delete(row)
            memory = cls(ctx)
            memory.note_problem("memory of all jobs that could not be read")
            return memory

    def changed(self) -> None:
        """Counts the version up; to be called after each change, so that other copies of these rows are no longer
        current.
        """
        self.version += 1
        self._misc.put("version", b"%d" % self.version)

    def set_due(self, due_ns: int) -> None:
        """Keeps when the next look is to be taken (the bus's ns); 0: none is asked for. Sets no timer."""
        self.due_ns = due_ns
        self._misc.put("due", b"%d" % due_ns)
        self.changed()

    def note_problem(self, what: str) -> None:
        """Counts a problem: something that was told and cannot be."""
        self.problems[what] = self.problems.get(what, 0) + 1
        self._misc.put("problems", json.dumps(self.problems).encode())
        self.changed()

    def note_doubt(self, doubt: Doubt) -> bool:
        """Counts a doubt; whether it is the first of its kind and entity, of the last MAX_DOUBTED."""
        self.note_problem(doubt.what)
        if doubt.key in self._doubted:
            return False
        self._doubted[doubt.key] = None
        while len(self._doubted) > MAX_DOUBTED:
            del self._doubted[next(iter(self._doubted))]
        self._misc.put("doubted", json.dumps(list(self._doubted)).encode())
        return True

    def expect_places(self, attempt: str, by: float | None) -> None:
        """Notes by when (Unix seconds) the places of the attempt's nodes must have been told; None: it waits no longer.

        A time that is set stays.
        """
        if by is not None and len(self.unplaced) < MAX_DOUBTED:
            self.unplaced.setdefault(attempt, by)
        elif by is None:
            self.unplaced.pop(attempt, None)
        self._misc.put("unplaced", json.dumps(self.unplaced).encode())
        self.changed()

    # --- troubles ---------------------------------------------------------------------------------------------------
    def put(self, trouble: Trouble) -> None:
        """Keeps a trouble, new or changed; drops one that is too old, and those that are too many."""
        self._troubles.put_later(trouble.id, trouble.pack)  # it is put again before the next commit, nearly always
        if trouble.is_planned:
            self.stopped_at = max(self.stopped_at, trouble.opened)
        self._index(trouble)
        while len(self.troubles) > MAX_TROUBLES:
            self._drop(next((t for t in self.troubles.values() if not t.is_open), next(iter(self.troubles.values()))))
        oldest = next(iter(self.troubles.values()))
        if not oldest.is_open and oldest.opened < trouble.opened - KEPT_S:
            self._drop(oldest)
        self.changed()

    def fitting(self, trouble: Trouble, find: Callable[[Trouble], frozenset[str]]) -> frozenset[str]:
        """Names of the rules that the trouble fits; ``find`` gives them, and is called once for each state of a
        trouble.
        """
        known = self._fitting.get(trouble.id)
        if known is None or known[0] is not trouble:
            known = self._fitting[trouble.id] = trouble, find(trouble)
        return known[1]

    def note_opening(self, at: float, job: str) -> None:
        """Notes that a page-worthy incident of the job was opened. at: Unix seconds of the bus; a minute of them is
        kept.
        """
        self.openings.append((at, job))
        while self.openings and self.openings[0][0] < at - 60.0:
            self.openings.popleft()
        self._misc.put("openings", json.dumps(list(self.openings)).encode())

    def of_run(self, trouble: Trouble) -> list[Trouble]:
        """All troubles of the trouble's run (of its job, where it has none), itself among them, in order of opening."""
        return [self.troubles[id_] for id_ in self.by_run.get(trouble.run or trouble.job, ())]

    def recent(self, since: float) -> Iterator[Trouble]:
        """Troubles with an onset from ``since`` (Unix seconds) on in order of onset, then open ones from before."""
        yield from self.began_within(since, math.inf)
        for trouble in self.open.values():
            if trouble.onset < since:
                yield trouble

    def began_within(self, first: float, last: float) -> Iterator[Trouble]:
        """Troubles with an onset from ``first`` to ``last`` (Unix seconds), both included, in order of onset."""
        begin, end = (
            bisect.bisect_left(self._by_onset, bound) for bound in ((first, ""), (math.nextafter(last, math.inf), ""))
        )
        for place in range(begin, end):
            yield self.troubles[self._by_onset[place][1]]

    def opened_since(self, since: float) -> Iterator[Trouble]:
        """Troubles opened after ``since`` (Unix seconds), the newest first."""
        for trouble in reversed(self.troubles.values()):
            if trouble.opened <= since:
                return
            yield trouble

    def _index(self, trouble: Trouble) -> None:
        before = self.troubles.get(trouble.id)
        if before is None:
            self.by_run.setdefault(trouble.run or trouble.job, []).append(trouble.id)
            bisect.insort(self._by_onset, (trouble.onset, trouble.id))
        elif before is not trouble:
            self._unlink(before)
            bisect.insort(self._by_onset, (trouble.onset, trouble.id))
        if trouble.ranks and trouble.step >= 0:
            self.by_step.setdefault(step_key(trouble), {})[trouble.id] = None
        if trouble.leader:
            self.joined.setdefault(trouble.leader, {})[trouble.id] = None
        self.troubles[trouble.id] = trouble
        if trouble.is_open:
            self.open[trouble.id] = trouble
        else:
            self.open.pop(trouble.id, None)
        _keep(self.fresh, trouble.id, is_in=trouble.is_fresh)
        _keep(self.held, trouble.id, is_in=trouble.is_open and bool(trouble.held_until))

    def join(self, trouble: Trouble, leader: str, cause: list[str]) -> bool:
        """Puts the trouble under a leader, for a cause (rule and value); False where it was there already. leader "":
        alone.
        """
        if trouble.leader == leader and trouble.cause == cause:
            return False
        if trouble.leader and trouble.leader != leader:
            _discard(self.joined, trouble.leader, trouble.id)
        trouble.leader, trouble.cause = leader, cause
        self.put(trouble)
        return True

    def _unlink(self, trouble: Trouble) -> None:
        place = bisect.bisect_left(self._by_onset, (trouble.onset, trouble.id))
        if self._by_onset[place : place + 1] == [(trouble.onset, trouble.id)]:
            del self._by_onset[place]
        if trouble.ranks and trouble.step >= 0:
            _discard(self.by_step, step_key(trouble), trouble.id)
        if trouble.leader:
            _discard(self.joined, trouble.leader, trouble.id)

    def drop(self, incident: str) -> None:
        """Forgets an incident, as it is kept no longer."""
        trouble = self.troubles.get(incident)
        if trouble is not None:
            self._drop(trouble)
            self.changed()

    def _drop(self, trouble: Trouble) -> None:
        self._unlink(trouble)
        self.troubles.pop(trouble.id, None)
        for index in (self.open, self.fresh, self.held, self._fitting):
            index.pop(trouble.id, None)
        self._troubles.delete(trouble.id)
        ids = self.by_run.get(trouble.run or trouble.job, [])
        if trouble.id in ids:
            ids.remove(trouble.id)
        if not ids:
            self.by_run.pop(trouble.run or trouble.job, None)

    # --- signs, plans, labels ---------------------------------------------------------------------------------------
    def take_sign(self, condition: ConditionReport, now: float) -> bool:
        """Keeps a condition as a sign if it may concern several jobs; whether it may. now: Unix seconds."""
        is_taken = self.signs.take(condition, now)
        if is_taken or condition.tolerated:
            self.changed()
        return is_taken

    def put_plan(self, plan: Plan) -> None:
        """Keeps what was announced; the oldest plans are dropped beyond MAX_PLANS."""
        self.plans[plan.key] = plan
        self._plans.put(plan.key, plan.pack())
        while len(self.plans) > MAX_PLANS:
            oldest = next(iter(self.plans))
            del self.plans[oldest]
            self._plans.delete(oldest)
        self.changed()

    def put_label(self, incident: str, label: IncidentLabel) -> None:
        """Keeps a person's word on an incident; the oldest are dropped beyond MAX_TROUBLES."""
        self.told[incident] = label
        self._labels.put(incident, json.dumps(write_label(label)).encode())
        while len(self.told) > MAX_TROUBLES:
            oldest = next(iter(self.told))
            del self.told[oldest]
            self._labels.delete(oldest)
        self.changed()


def step_key(trouble: Trouble) -> StepKey:
    """A key that troubles share which may be the same rank at the same step again.

    Another run's failure only counts where the error's words say so.
    """
    ranks = ",".join(map(str, trouble.ranks))
    return ranks, trouble.step, trouble.kind, trouble.error or trouble.run or trouble.job


def _discard(index: dict[_K, dict[str, None]], key: _K, id_: str) -> None:
    known = index.get(key, {})
    known.pop(id_, None)
    if not known:
        index.pop(key, None)


def _keep(index: dict[str, None], id_: str, *, is_in: bool) -> None:
    if is_in:
        index[id_] = None
    else:
        index.pop(id_, None)
