"""What happens to each incident: planned, held against the limits, done by the hooks, and written down.

One thread; time comes with each call. What is begun is durable before a hook is called, and nothing is begun that the
audit file has not taken. Whatever is not done is told with its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...telemetry.vocabulary import IncidentState, Outcome
from .audit import AuditFile
from .breaker import HOUR_S, Limits, why_open
from .hooks import Hook
from .ledger import DRY, Ledger, Waiting
from .planning.acts import Act, Operation, Plan, Refusal, Result, Why
from .planning.plan import Policy, act_of, plan

Told = Mapping[str, Any]
#: After these a node is not out, as far as we know.
_NOT_OUT = frozenset({Outcome.FAILED, Outcome.REFUSED, Outcome.UNFINISHED, Outcome.BEGUN})


class Desk:
    """tell: called with each line of the audit file, after it was written."""

    def __init__(
        self,
        ledger: Ledger,
        audit: AuditFile,
        hooks: Mapping[str, Hook],
        policy: Policy,
        limits: Limits,
        *,
        undo: bool,
        tell: Callable[[Told], None],
    ) -> None:
        self._ledger = ledger
        self._audit = audit
        self._hooks = hooks
        self._policy = policy
        self._limits = limits
        self._undo = undo
        self._tell = tell
        self._is_dry = ledger.mode == DRY
        #: By outcome, hook and operation; and refusals by reason.
        self.outcomes: Counter[tuple[str, str, str]] = Counter()
        self.refusals: Counter[str] = Counter()

    def begin(self, now: float) -> None:
        """Tell what an earlier life left unfinished. Raises OSError."""
        for row in self._ledger.give_up_unfinished(now):
            self._note(
                Outcome.UNFINISHED,
                now,
                incident=row["incident"],
                action=row["action"],
                hook=row["hook"],
                operation=row["operation"],
                target=row["target"],
                mode=row["mode"],
                text=f"{row['operation']} {row['target']} by {row['hook']} was begun before a restart; nobody knows"
                " whether it was done, and it is not done again: look",
            )

    def turn(self, now: float) -> int:
        """Answer those whose time has come; how many. Raises OSError where nothing can be written down."""
        waiting = self._ledger.due(now)
        for each in waiting:
            self._answer(each, now)
            self._ledger.is_answered(str(each.document["id"]))
        return len(waiting)

    def _answer(self, waiting: Waiting, now: float) -> None:
        document = waiting.document
        if document["state"] != IncidentState.OPEN.value:
            if self._undo and document["state"] == IncidentState.RESOLVED.value:
                self._take_back(document, now)
            return
        found = plan(document, self._policy, age_s=now - waiting.news)
        if isinstance(found, Refusal):
            self._refuse(document, found, now)
            return
        left = [act for act in found.acts if self._ledger.outcome(act) is None]
        if not left:
            return
        if refusal := self._held_back(found, left, now):
            self._refuse(document, refusal, now)
            return
        ours = self._ledger.nodes_out(now)
        self._ledger.take_out(found.nodes, str(document["id"]), now)
        for act in left:
            if act.operation is Operation.RESTART_JOB and self._is_a_node_still_in(found):
                self._refuse(document, Refusal(why=Why.DRAIN_FAILED), now, act)
            else:
                self._carry_out(act, now)
        drains = [self._ledger.outcome(act) for act in found.acts if act.operation is Operation.DRAIN_NODE]
        for node in found.nodes:
            if node not in ours and drains and all(outcome is Outcome.ALREADY for outcome in drains):
                self._ledger.was_out(node, str(document["id"]))

    def _held_back(self, found: Plan, left: list[Act], now: float) -> Refusal | None:
        if refusal := self._breaker_holds(found.nodes, left[0], now):
            return refusal
        for hook, count in Counter(act.hook for act in left).items():
            if self._ledger.acts_within(hook, HOUR_S, now) + count > self._limits.acts_per_hour:
                return Refusal(why=Why.RATE_LIMITED, detail=hook)
        return None

    def _breaker_holds(self, nodes: tuple[str, ...], act: Act, now: float) -> Refusal | None:
        why = self._ledger.breaker().why
        if why is None:
            why = why_open(nodes, self._ledger.nodes_out(now), self._limits, now)
            if why is None:
                return None
            self._ledger.open_breaker(why, now)
            text = f"the breaker opens: {why}; nothing more is done until: whichrank respond reset-breaker"
            self._note(Outcome.BREAKER_OPENED, now, incident=act.incident, job=act.job, detail=why, text=text)
        return Refusal(why=Why.BREAKER_OPEN, detail=why)

    def _is_a_node_still_in(self, found: Plan) -> bool:
        drains = [self._ledger.outcome(act) for act in found.acts if act.operation is Operation.DRAIN_NODE]
        return any(outcome is None or outcome in _NOT_OUT for outcome in drains)

    def _carry_out(self, act: Act, now: float) -> Result:
        hook = self._hooks[act.hook]
        words = f"{act.operation.value} {act.target} by {act.hook}"
        if self._is_dry:
            self._ledger.begin(act, now)
            result = Result(outcome=Outcome.WOULD, detail=hook.describe(act))
        else:
            self._note(Outcome.BEGUN, now, act=act, detail=hook.describe(act), text=f"{words}: {hook.describe(act)}")
            if not self._ledger.begin(act, now):
                return Result(outcome=Outcome.ALREADY)  # by whom else: the lock of the folder lets in one
            result = hook.do(act)
        self._ledger.end(act, result.outcome, result.detail or (result.why.value if result.why else ""), now)
        said = " ".join(filter(None, (result.why.value if result.why else "", result.detail)))
        text = f"{result.outcome.value} {words}" + (f": {said}" if said else "")
        self._note(result.outcome, now, act=act, detail=result.detail, why=result.why, text=text)
        return result

    def _take_back(self, document: Mapping[str, Any], now: float) -> None:
        """The incident is over: nodes that no other open one needs out come back, whichever it was that took them."""
        incident = str(document["id"])
        for node in self._ledger.nodes_for(incident):
            if not self._ledger.is_needed_out(node, incident):
                for row in self._ledger.drains_of(node):
                    self._give_back(document, row, now)

    def _give_back(self, document: Mapping[str, Any], row: Mapping[str, Any], now: float) -> None:
        """row: of the act that took the node out."""
        node, hook = str(row["target"]), self._hooks.get(str(row["hook"]))
        if hook is None or Operation.UNDRAIN_NODE not in hook.can:
            return
        act = act_of(document, hook.name, Operation.UNDRAIN_NODE, node, str(row["action"]))
        act = replace(act, incident=str(row["incident"]))
        if self._ledger.outcome(act) is not None:
            return
        if (why := self._ledger.breaker().why) is not None:
            self._refuse(document, Refusal(why=Why.BREAKER_OPEN, detail=why), now, act)
        elif self._ledger.acts_within(hook.name, HOUR_S, now) >= self._limits.acts_per_hour:
            self._refuse(document, Refusal(why=Why.RATE_LIMITED, detail=hook.name), now, act)
        elif self._carry_out(act, now).outcome in (Outcome.DONE, Outcome.WOULD):
            self._ledger.give_back(node, now)

    def _refuse(self, document: Mapping[str, Any], refusal: Refusal, now: float, act: Act | None = None) -> None:
        advice = document.get("advice") or {}
        what = f"{act.operation.value} {act.target} by {act.hook}" if act else str(advice.get("action") or "anything")
        detail = f" ({refusal.detail})" if refusal.detail else ""
        self._note(
            Outcome.REFUSED,
            now,
            act=act,
            incident=document["id"],
            revision=document["revision"],
            job=(document.get("job") or {}).get("id"),
            action=advice.get("action"),
            why=refusal.why,
            detail=refusal.detail,
            text=f"refused {what} of incident {document['id']}: {refusal.why.value}{detail}",
        )

    def _note(
        self, outcome: Outcome, now: float, *, act: Act | None = None, why: Why | None = None, **found: Any
    ) -> None:
        """Into the audit file, then to everybody else. Raises OSError."""
        told: dict[str, Any] = {"time": round(now, 3), "outcome": outcome.value, "mode": self._ledger.mode}
        if act is not None:
            told |= {"incident": act.incident, "revision": act.revision, "job": act.job, "action": act.action}
            told |= {"hook": act.hook, "operation": act.operation.value, "target": act.target}
        if why is not None:
            told["why"] = why.name.lower()
            self.refusals[why.name.lower()] += outcome is Outcome.REFUSED
        told |= {name: value for name, value in found.items() if value not in (None, "")}
        self._audit.write(told)
        self.outcomes[outcome.value, str(told.get("hook", "")), str(told.get("operation", ""))] += 1
        self._tell(told)
