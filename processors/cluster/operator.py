"""ClusterOperator: alone opens, updates, merges, resolves and reopens incidents, from the findings of other operators.

Pure: findings in, incident revisions and evidence requests out. State: a row per incident, and per job the list of its
incidents, for a week after the last of them has ended. One page per cause; an incident's id is fixed when it opens.
Where the state was lost, what was published is given to it as incidents, before any finding: it goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from ...telemetry.records import Finding, Incident, Record
from ...telemetry.vocabulary import Kind
from ..operator import Context, Timer
from .case_book import FORGET, CaseBook, HeldCases
from .condition_register import register_of
from .docket import COST, SETTLED, SHARED, Docket
from .failures import FAILURES, FailureRegister
from .folding import FOLD, accounts_of, fold
from .held_conditions import HeldConditions
from .shared.memory import Memory

UNKNOWN_CLUSTER = "unknown"
#: What could not be done is tried again so long after.
AGAIN_NS = 3_600_000_000_000
_LOOK = "look at all jobs"


class ClusterOperator:
    """Opens, updates, merges and resolves incidents of each cluster. One instance serves all clusters."""

    name = "cluster"
    contains_itself = True
    keys_are_jobs = False
    most_keys = 256

    def __init__(self, disabled: Collection[Kind] = (), *, asks_for_files: bool = False) -> None:
        """disabled: kinds of which no incident is opened; the attribute may be set at any time. Open ones go on to
        their end.

        asks_for_files: agents are also asked for files: log tails, last minutes and dumps of suspects.
        """
        self.disabled = frozenset(disabled)
        self._asks_for_files = asks_for_files
        self._memories: dict[str, Memory] = {}
        self._held = HeldCases()
        self._held_conditions = HeldConditions()

    def forget(self, ctx: Context) -> None:
        """Nothing: a cluster is not forgotten, however quiet it is."""

    def spare(self, ctx: Context) -> bool:
        """Lets a cluster go of which no incident is kept: its name is only a word of whoever sends records."""
        if CaseBook(ctx, self._held).has_any():
            return False
        self._memories.pop(ctx.key, None)
        self._held.shares.pop(ctx.key, None)
        self._held_conditions.let_go(ctx.key)
        return True

    def let_go(self, key: str) -> None:
        """Forgets the working copies of a cluster: what all jobs share, cases and conditions."""
        self._memories.pop(key, None)
        self._held.let_go(key)
        self._held_conditions.clear()

    def key_of(self, record: Record) -> str | None:
        """The cluster of a finding or published incident; None of all else."""
        payload = record.payload
        if isinstance(payload, Finding):
            return payload.identity.cluster or UNKNOWN_CLUSTER
        if isinstance(payload, Incident):
            return str(payload.document.get("cluster") or UNKNOWN_CLUSTER)
        return None

    def process(self, records: Sequence[Record], ctx: Context) -> None:
        """Takes findings, and after a loss of state incidents as they were published. Looks that are due come first.

        Emits revisions of incidents and requests for evidence.
        """
        for record in records:
            self._look_until(record.stamp_ns, ctx)
            self._attempt(ctx, partial(self._take, record, ctx), record)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Does what the timer is for: a look at all jobs, at a hang without a fault, costs, folding accounts,
        forgetting jobs.
        """
        if timer.name == SHARED:
            self._look_until(ctx.now, ctx)
        elif not self._attempt(ctx, partial(self._keep, timer, ctx), timer.name) and timer.name in (FOLD, FORGET):
            ctx.set_timer(timer.name, ctx.now + AGAIN_NS)

    def _take(self, record: Record, ctx: Context) -> None:
        docket = self._docket(ctx, record.stamp_ns)
        if isinstance(record.payload, Finding):
            docket.take(record.payload)
        elif isinstance(record.payload, Incident):
            docket.adopt(record.payload)

    def _keep(self, timer: Timer, ctx: Context) -> None:
        if timer.name.startswith(SETTLED):
            self._docket(ctx, ctx.now).settle(timer.name.removeprefix(SETTLED))
        elif timer.name.startswith(COST):
            self._docket(ctx, ctx.now).tell_cost(timer.name.removeprefix(COST))
        elif timer.name == FOLD:
            fold(ctx, CaseBook(ctx, self._held))
        elif timer.name == FORGET:
            self._forget(ctx)

    def _attempt(self, ctx: Context, act: Callable[[], None], about: Record | str) -> bool:
        """One finding, incident or timer is what may fail here, never the cluster: what it did is taken back."""
        if ctx.attempt(act, about):
            return True
        self.let_go(ctx.key)
        return False

    def _forget(self, ctx: Context) -> None:
        book, conditions = CaseBook(ctx, self._held), register_of(ctx, self._held_conditions)
        failures = FailureRegister(ctx.state.table(FAILURES))
        for job, cases in book.forgotten_by(ctx.now):
            accounts_of(ctx).fold_job(job, book.documents(job))
            for case in cases:
                failures.forget(case.line, job)
            conditions.forget(job)

    def _look_until(self, stamp_ns: int, ctx: Context) -> None:
        """Takes each look that is due by then at its own time, whether a timer or the next record gets there first."""
        while 0 < (due_ns := self._memory(ctx).due_ns) <= stamp_ns:
            if not self._attempt(ctx, partial(self._look, due_ns, ctx), _LOOK):
                # What jobs share is not told then; each of their incidents is, and none waits for it any longer.
                self._memory(ctx).set_due(0)
                for incident in list(self._memory(ctx).held):
                    self._attempt(ctx, partial(self._release, incident, due_ns, ctx), f"release of {incident}")

    def _look(self, due_ns: int, ctx: Context) -> None:
        self._docket(ctx, due_ns).look()

    def _release(self, incident: str, due_ns: int, ctx: Context) -> None:
        self._docket(ctx, due_ns).release(incident)

    def _memory(self, ctx: Context) -> Memory:
        memory = self._memories[ctx.key] = Memory.current(self._memories.get(ctx.key), ctx)
        return memory

    def _docket(self, ctx: Context, stamp_ns: int) -> Docket:
        book, conditions = CaseBook(ctx, self._held), register_of(ctx, self._held_conditions)
        memory, asks = self._memory(ctx), self._asks_for_files
        return Docket(ctx, stamp_ns, self.disabled, memory, book, conditions, asks_for_files=asks)
