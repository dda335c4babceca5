"""What happens to each incident: planned, held against the limits, done by the hooks, and written down.

One thread; time comes with each call. What is begun is durable before a hook is called, and nothing is begun that the
audit file has not taken. Whatever is not done is told with its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from ...telemetry.incident_document import IncidentDocument, word_of
from ...telemetry.response_outcomes import Outcome
from ...telemetry.vocabulary import IncidentState
from ..incident_service.audit import AuditFile, AuditLine
from ..incident_service.inbox import HOUR_S
from .action_store import DRY, ActionStore, ActRow, DueIncident
from .breaker import Limits, why_open
from .hooks import Hook
from .planning.acts import Act, ActionPlan, HookOperation, HookResult, Refusal, Why
from .planning.plan import Policy, act_of, plan

#: After these a node is not out, as far as we know.
_NOT_OUT = frozenset({Outcome.FAILED, Outcome.REFUSED, Outcome.UNFINISHED, Outcome.BEGUN})


class ActionExecutor:
    """tell: called with each line of the audit file, after it was written.

    drain_expires_s: so long after a node was taken out it is given back, whatever its incident says; 0: never.
    """

    def __init__(
        self,
        store: ActionStore,
        audit: AuditFile,
        hooks: Mapping[str, Hook],
        policy: Policy,
        limits: Limits,
        *,
        undo: bool,
        drain_expires_s: float = 0.0,
        tell: Callable[[AuditLine], None],
    ) -> None:
        self._store = store
        self._audit = audit
        self._hooks = hooks
        self._policy = policy
        self._limits = limits
        self._undo = undo
        self._drain_expires_s = drain_expires_s
        self._tell = tell
        self._is_dry = store.mode == DRY
        #: By outcome, hook and operation; and refusals by reason.
        self.outcomes: Counter[tuple[str, str, str]] = Counter()
        self.refusals: Counter[str] = Counter()

    def begin(self, now: float) -> None:
        """Writes down what an earlier life of the service began and did not end; it is not done again.

        now: Unix seconds. Raises OSError.
        """
        for row in self._store.give_up_unfinished(now):
            line = AuditLine(
                time=round(now, 3),
                outcome=Outcome.UNFINISHED.value,
                mode=row.mode,
                incident=row.incident,
                action=row.action,
                hook=row.hook,
                operation=row.operation,
                target=row.target,
                text=f"{row.operation} {row.target} by {row.hook} was begun before a restart; nobody knows"
                " whether it was done, and it is not done again: look",
            )
            self._write(line)

    def turn(self, now: float) -> int:
        """Answers the incidents whose time has come; how many. now: Unix seconds.

        Raises OSError where nothing can be written down.
        """
        waiting = self._store.due(now)
        for each in waiting:
            self._answer(each, now)
            self._store.is_answered(each.incident.id)
        if self._drain_expires_s > 0:
            self._give_back_expired(now)
        return len(waiting)

    def _answer(self, due: DueIncident, now: float) -> None:
        incident = due.incident
        if incident.state is not IncidentState.OPEN:
            if self._undo and incident.state is IncidentState.RESOLVED:
                self._take_back(incident, now)
            return
        found = plan(incident, self._policy, age_s=now - due.news)
        if isinstance(found, Refusal):
            self._refuse(incident, found, now)
            return
        left = [act for act in found.acts if self._store.outcome(act) is None]
        if not left:
            return
        if refusal := self._held_back(found, left, now):
            self._refuse(incident, refusal, now)
            return
        ours = self._store.nodes_out(now)
        self._store.take_out(found.nodes, incident.id, now)
        for act in left:
            if act.operation is HookOperation.RESTART_JOB and self._is_a_node_still_in(found):
                self._refuse(incident, Refusal(why=Why.DRAIN_FAILED), now, act)
            else:
                self._carry_out(act, now)
        drains = [self._store.outcome(act) for act in found.acts if act.operation is HookOperation.DRAIN_NODE]
        for node in found.nodes:
            if node not in ours and drains and all(outcome is Outcome.ALREADY for outcome in drains):
                self._store.was_out(node, incident.id)

    def _held_back(self, found: ActionPlan, left: list[Act], now: float) -> Refusal | None:
        if refusal := self._breaker_holds(found.nodes, left[0], now):
            return refusal
        for hook, count in Counter(act.hook for act in left).items():
            if self._store.acts_within(hook, HOUR_S, now) + count > self._limits.acts_per_hour:
                return Refusal(why=Why.RATE_LIMITED, detail=hook)
        return None

    def _breaker_holds(self, nodes: tuple[str, ...], act: Act, now: float) -> Refusal | None:
        why = self._store.breaker().why
        if why is None:
            why = why_open(nodes, self._store.nodes_out(now), self._limits, now)
            if why is None:
                return None
            self._store.open_breaker(why, now)
            text = f"the breaker opens: {why}; nothing more is done until: whichrank respond reset-breaker"
            line = AuditLine(
                time=round(now, 3),
                outcome=Outcome.BREAKER_OPENED.value,
                mode=self._store.mode,
                incident=act.incident,
                job=act.job,
                detail=why,
                text=text,
            )
            self._write(line)
        return Refusal(why=Why.BREAKER_OPEN, detail=why)

    def _is_a_node_still_in(self, found: ActionPlan) -> bool:
        drains = [self._store.outcome(act) for act in found.acts if act.operation is HookOperation.DRAIN_NODE]
        return any(outcome is None or outcome in _NOT_OUT for outcome in drains)

    def _carry_out(self, act: Act, now: float) -> HookResult:
        hook = self._hooks[act.hook]
        words = f"{act.operation.value} {act.target} by {act.hook}"
        if self._is_dry:
            self._store.begin(act, now)
            result = HookResult(outcome=Outcome.WOULD, detail=hook.describe(act))
        else:
            self._note(act, Outcome.BEGUN, now, detail=hook.describe(act), text=f"{words}: {hook.describe(act)}")
            if not self._store.begin(act, now):
                return HookResult(outcome=Outcome.ALREADY)  # by whom else: the lock of the folder lets in one
            result = hook.do(act)
        self._store.end(act, result.outcome, result.detail or (result.why.value if result.why else ""), now)
        said = " ".join(filter(None, (result.why.value if result.why else "", result.detail)))
        text = f"{result.outcome.value} {words}" + (f": {said}" if said else "")
        self._note(act, result.outcome, now, detail=result.detail, why=result.why, text=text)
        return result

    def _take_back(self, incident: IncidentDocument, now: float) -> None:
        """The incident is over: nodes that no other open one needs out come back, whichever it was that took them."""
        for node in self._store.nodes_for(incident.id):
            if not self._store.is_needed_out(node, incident.id):
                for row in self._store.drains_of(node):
                    self._give_back(incident, row, now)

    def _give_back_expired(self, now: float) -> None:
        """What limits hold back waits, and is not told again at each turn."""
        for row in self._store.drained_before(now - self._drain_expires_s):
            hook, incident = self._hooks.get(row.hook), self._store.incident(row.incident)
            if hook is None or HookOperation.UNDRAIN_NODE not in hook.can or incident is None:
                continue
            if self._store.breaker().why is not None:
                return
            if self._store.acts_within(hook.name, HOUR_S, now) < self._limits.acts_per_hour:
                self._give_back(incident, row, now)

    def _give_back(self, incident: IncidentDocument, row: ActRow, now: float) -> None:
        """row: of the act that took the node out."""
        node, hook = row.target, self._hooks.get(row.hook)
        if hook is None or HookOperation.UNDRAIN_NODE not in hook.can:
            return
        act = act_of(incident, hook.name, HookOperation.UNDRAIN_NODE, node, row.action)
        act = replace(act, incident=row.incident)
        if self._store.outcome(act) is not None:
            return
        if (why := self._store.breaker().why) is not None:
            self._refuse(incident, Refusal(why=Why.BREAKER_OPEN, detail=why), now, act)
        elif self._store.acts_within(hook.name, HOUR_S, now) >= self._limits.acts_per_hour:
            self._refuse(incident, Refusal(why=Why.RATE_LIMITED, detail=hook.name), now, act)
        elif self._carry_out(act, now).outcome in (Outcome.DONE, Outcome.WOULD):
            self._store.give_back(node, now)

    def _refuse(self, incident: IncidentDocument, refusal: Refusal, now: float, act: Act | None = None) -> None:
        action = "" if incident.advice is None else word_of(incident.advice.action)
        what = f"{act.operation.value} {act.target} by {act.hook}" if act else action or "anything"
        detail = f" ({refusal.detail})" if refusal.detail else ""
        line = AuditLine(
            time=round(now, 3),
            outcome=Outcome.REFUSED.value,
            mode=self._store.mode,
            incident=incident.id,
            revision=incident.revision,
            job=incident.job.id or "",
            action=action,
            hook=act.hook if act else "",
            operation=act.operation.value if act else "",
            target=act.target if act else "",
            why=refusal.why.name.lower(),
            detail=refusal.detail,
            text=f"refused {what} of incident {incident.id}: {refusal.why.value}{detail}",
        )
        self._write(line)

    def _note(
        self, act: Act, outcome: Outcome, now: float, *, detail: str = "", why: Why | None = None, text: str
    ) -> None:
        """What has become of an act. Raises OSError."""
        line = AuditLine(
            time=round(now, 3),
            outcome=outcome.value,
            mode=self._store.mode,
            incident=act.incident,
            revision=act.revision,
            job=act.job,
            action=act.action,
            hook=act.hook,
            operation=act.operation.value,
            target=act.target,
            why="" if why is None else why.name.lower(),
            detail=detail,
            text=text,
        )
        self._write(line)

    def _write(self, line: AuditLine) -> None:
        """Into the audit file, then to everybody else. Raises OSError."""
        if line.why:
            self.refusals[line.why] += line.outcome == Outcome.REFUSED.value
        self._audit.write(line)
        self.outcomes[line.outcome, line.hook, line.operation] += 1
        self._tell(line)
