"""The supervisor of one command: what it has seen, what it decides, and how far its act has come.

Runs in the watching thread, one ``turn`` after each of the watch's, so that it always judges the newest revisions.
Never blocks. Where it fails itself, it says one line and is over, and the command goes on as if nobody had asked.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...telemetry.incident_document import IncidentDocument
from ...telemetry.records import Event
from ...telemetry.response_outcomes import Outcome
from ...telemetry.vocabulary import EventName
from ..incident_text.incident_view import incident_view
from ..support.restart_trigger import Trigger
from .actuator import CommandEnder, Ended
from .decision import TOLD, Decision, End, Reason, RestartVerdict, SeenIncident, judge_ended, judge_running, like
from .job_processes import find_job_processes
from .limits import RestartLimits, Tried, pause_s, recent
from .node_exclusion import without_node
from .nodes import Nodes, Order, Word
from .trail import Trail

#: By these somebody ends a job; others only nudge it.
ENDING_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
END_COMMAND = "end_command"
#: What was not begun, as the node stays or the audit file takes nothing, is looked at again after so long.
REFUSED_S = 10.0
#: The others' commands have so much longer than the grace to end.
NODES_PATIENCE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOptions:
    """limits: how often. on: for what. spares: nodes that nobody uses. grace_s: between SIGTERM and SIGKILL.

    allocated: nodes of the Slurm job; 0 is not known.
    """

    limits: RestartLimits
    on: frozenset[Trigger]
    spares: tuple[str, ...] = ()
    grace_s: float = 30.0
    dry: bool = False
    allocated: int = 0


class Supervisor:
    def __init__(
        self,
        options: SupervisorOptions,
        command: Sequence[str],
        *,
        job: str,
        folder: Path,
        rings: Path,
        trail: Trail,
        nodes: Nodes | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """folder: of the run. rings: the run's folder of rings, by which its processes are known. nodes: the others of
        a job that is judged here.
        """
        self._nodes, self._left_out = nodes, ""
        self._options, self._job, self._folder, self._trail, self._now = options, job, folder, trail, now
        self._marks = (f"WHICHRANK_DIR={rings}".encode(),)
        self._command = tuple(command)
        self._spares = list(options.spares)
        self._seen: dict[str, SeenIncident] = {}
        self._over: set[str] = set()  # attempts that are over
        self._told: set[tuple[str, Reason]] = set()
        self._ender: CommandEnder | None = None
        self._act: Decision | None = None  # that has ended the command, or is about to start it again
        #: What is started next.
        self.next_command = self._command
        self._due_s = self._nodes_due_s = self._quiet_until_s = 0.0
        self._was_asked = False
        #: Restarts so far.
        self.tried: list[Tried] = []

    # --- sensor -------------------------------------------------------------------------------------------------------
    def saw(self, incident: IncidentDocument) -> None:
        """Takes a revision of an incident."""
        before = self._seen.get(incident.id)
        same = before is not None and _calls_for(before.incident) == _calls_for(incident)
        since_s = before.since_s if before is not None and same else self._now()
        self._seen[incident.id] = SeenIncident(incident=incident, since_s=since_s)

    def heard(self, event: Event) -> None:
        """Takes an event of the bus: another node's command may have ended, or been asked to."""
        if self._nodes is not None:
            self._nodes.heard(event)
            if event.name is EventName.JOB_SIGNALLED:
                self.signalled(int(event.attributes.get("signal", 0)))

    def signalled(self, number: int) -> None:
        """Somebody has sent whichrank, or the command, a signal: after one that ends jobs nothing is restarted."""
        if number in ENDING_SIGNALS:
            self._was_asked = True
            self._ender = self._act = None  # the command is his

    # --- controller, while the command runs ---------------------------------------------------------------------------
    @property
    def is_waiting(self) -> bool:
        """Whether something is to come before the next start: an end, here or on another node, or the pause's."""
        if self._act is None:
            return False
        if self._ender is not None or (self._running_elsewhere() and self._now() < self._nodes_due_s):
            return True
        return self._now() < self._due_s

    def _running_elsewhere(self) -> list[str]:
        return [] if self._nodes is None else [node for node in self._nodes.running if node != self._left_out]

    @property
    def has_ended_it(self) -> bool:
        """Whether the command's end is this supervisor's doing."""
        return self._act is not None

    def turn(self, root: int, attempt: str) -> None:
        """Judges, or goes on with ending the command. root: its pid. attempt: as incidents name the present one."""
        try:
            self._turn(root, attempt)
        except Exception as error:  # edge: the command must not pay for it
            self._was_asked, self._ender, self._act = True, None, None
            self._trail.say(f"the supervisor is off: {type(error).__name__}: {error}; the command goes on")

    def _turn(self, root: int, attempt: str) -> None:
        if self._ender is not None:
            self._go_on_ending()
            return
        if self._was_asked or self._act is not None:
            return
        decision = judge_running(
            self._of_attempt(attempt),
            on=self._options.on,
            tried=self.tried,
            limits=self._options.limits,
            now_s=self._now(),
        )
        if not decision.acts:
            if decision.reason in TOLD:
                self._refuse_once(decision)
            return
        if self._now() < self._quiet_until_s:
            return
        decision = self._placed(decision)
        if decision.acts and self._begin(decision):
            self._act = decision
            self._ender = self._make_ender(root)
        else:
            self._quiet_until_s = self._now() + REFUSED_S

    def _of_attempt(self, attempt: str) -> list[SeenIncident]:
        """Incidents of the present attempt. Before its first rank has come ``attempt`` is still the one before."""
        if attempt in self._over:
            return []
        return [
            one for one in self._seen.values() if not one.incident.job.attempt or one.incident.job.attempt == attempt
        ]

    def _placed(self, decision: Decision) -> Decision:
        """The decision with a command that leaves the node out; refused where none does."""
        self.next_command, self._left_out = self._command, ""
        if self._nodes is not None:
            return self._placed_on_nodes(decision, self._nodes)
        if decision.verdict is not RestartVerdict.WITHOUT_NODE:
            return decision
        exclusion = without_node(
            self._command, decision.node, self._spares, self._folder, allocated=self._options.allocated
        )
        if exclusion.command:
            self.next_command = exclusion.command
            return replace(decision, detail=exclusion.how)
        return self._refused(decision, Reason.NODE_STAYS, exclusion.how)

    def _placed_on_nodes(self, decision: Decision, nodes: Nodes) -> Decision:
        """The decision as far as the nodes that are there allow it. Their launchers take whoever comes."""
        if nodes.blind and not self._options.dry:
            return self._refused(decision, Reason.NOT_EVERYWHERE, ", ".join(nodes.blind[:4]))
        if decision.verdict is not RestartVerdict.WITHOUT_NODE:
            return decision
        if decision.node == nodes.own:
            return self._refused(decision, Reason.NODE_STAYS, f"the rendezvous is on {nodes.own}")
        left = nodes.count(without=(decision.node,))
        if left < nodes.least:
            return self._refused(decision, Reason.NODE_STAYS, f"{left} nodes are left, and it wants {nodes.least}")
        self._left_out = decision.node
        return replace(decision, detail=f"goes on without {decision.node}, on {left} of {nodes.expected} nodes")

    def _refused(self, decision: Decision, reason: Reason, detail: str) -> Decision:
        refused = replace(decision, verdict=RestartVerdict.STOP, reason=reason, detail=detail)
        self._refuse_once(refused)
        return refused

    def _begin(self, decision: Decision) -> bool:
        """Writes down what will be done; whether it may be."""
        number, most = len(self.tried) + 1, self._options.limits.restarts
        text = f"restart {number} of {most} because {_because(decision)}"
        if self._options.dry:
            if self._is_news(decision):
                self._trail.write(Outcome.WOULD, decision, f"dry run: would be {text}")
            return False
        if not self._trail.write(Outcome.BEGUN, decision, text):
            return False
        if self._nodes is not None:
            self._nodes_due_s = self._now() + self._options.grace_s + NODES_PATIENCE_S
            self._nodes.say(self._order(Word.END, decision, text))
        return True

    def _order(self, word: Word, decision: Decision | None = None, text: str = "") -> Order:
        incident = decision.incident.id if decision is not None and decision.incident is not None else ""
        return Order(word=word, number=len(self.tried) + 1, incident=incident, text=text)

    def _refuse_once(self, decision: Decision) -> None:
        if self._is_news(decision):
            outcome = Outcome.BREAKER_OPENED if decision.reason is Reason.TOO_OFTEN else Outcome.REFUSED
            runs = decision.verdict is RestartVerdict.NOTHING
            self._trail.write(
                outcome, decision, f"{'left running' if runs else 'not started again'}: {_because(decision)}"
            )

    def _is_news(self, decision: Decision) -> bool:
        key = (decision.incident.id if decision.incident is not None else "", decision.reason)
        is_new = key not in self._told
        self._told.add(key)
        return is_new

    # --- actuator -----------------------------------------------------------------------------------------------------
    def _make_ender(self, root: int) -> CommandEnder:
        return CommandEnder(
            lambda: find_job_processes(root, self._marks), root, grace_s=self._options.grace_s, now_s=self._now()
        )

    def _go_on_ending(self) -> None:
        assert self._ender is not None
        ended = self._ender.turn(self._now())
        if ended is None:
            return
        self._ender = None
        if self._act is not None and (ended.left or ended.killed):
            outcome = Outcome.FAILED if ended.left else Outcome.DONE
            self._trail.write(outcome, self._act, how_it_ended(ended), operation=END_COMMAND)

    # --- after the command has ended ----------------------------------------------------------------------------------
    def next(self, exit_code: int, attempt: str, *, ranks_seen: bool) -> bool:
        """After the command's end, once what it has left is concluded: whether it is to be started again.

        It is once nothing ``is_waiting`` any more, if it still ``may_start``.
        """
        if self._act is None:
            decision = self._judge_ended(exit_code, attempt, ranks_seen=ranks_seen)
            if decision.acts:
                decision = self._placed(decision)
                if decision.acts and self._begin(decision):
                    self._act = decision
                    self._ender = self._make_ender(0)  # what the command has left behind
            elif decision.reason is not Reason.ENDED_WELL:
                self._refuse_once(decision)
        if self._act is None:
            self._stop_others()
            return False
        number = 1 + recent(self.tried, self._now())
        self._due_s = self._now() + pause_s(number, self._options.limits, self._job)
        return True

    def _stop_others(self) -> None:
        if self._nodes is not None:
            self._nodes.say(self._order(Word.STOP))

    def _judge_ended(self, exit_code: int, attempt: str, *, ranks_seen: bool) -> Decision:
        return judge_ended(
            End(
                exit_code=exit_code,
                was_asked=self._was_asked,
                ranks_seen=ranks_seen and attempt not in self._over,
            ),
            [one.incident for one in self._of_attempt(attempt)],
            on=self._options.on,
            tried=self.tried,
            limits=self._options.limits,
            now_s=self._now(),
        )

    def may_start(self, exit_code: int, attempt: str) -> bool:
        """Just before the start: whether nothing that has come in meanwhile speaks against it. exit_code: the last."""
        why = self._why_not_now(exit_code, attempt)
        if why:
            self.not_started(why)
        elif self._act is not None:
            return True
        self._stop_others()
        return False

    def _why_not_now(self, exit_code: int, attempt: str) -> str:
        """In words; "" nothing speaks against it."""
        if self._act is None:
            return ""
        if self._act.trigger is Trigger.CRASH:
            again = self._judge_ended(exit_code, attempt, ranks_seen=True)
            if not again.acts:
                return _because(again)
        if self._nodes is not None:
            if running := self._running_elsewhere():
                return f"the command on {', '.join(running[:4])} has not ended"
            there = self._nodes.count(without=(self._left_out,))
            if there < self._nodes.least:
                return f"{there} nodes are there, and it wants {self._nodes.least}"
        return ""

    def started(self, attempt: str) -> None:
        """The command has been started again. attempt: the one that is over."""
        assert self._act is not None
        if self._nodes is not None:
            if self._left_out:
                self._nodes.say_to(self._left_out, self._order(Word.STOP))
            self._nodes.say(self._order(Word.START, self._act), but=(self._left_out,))
        self.tried.append(Tried(at_s=self._now(), what=like(self._act.incident)))
        number, most = len(self.tried), self._options.limits.restarts
        self._trail.write(Outcome.DONE, self._act, f"started again, {number} of {most}")
        if self._act.verdict is RestartVerdict.WITHOUT_NODE:
            self._spares = [spare for spare in self._spares if spare not in self._act.detail.split()]
        self._command, self._act = self.next_command, None
        self._over.add(attempt)
        self._seen.clear()

    def not_started(self, why: str) -> None:
        """The command could not be started again."""
        if self._act is not None:
            self._trail.write(Outcome.FAILED, self._act, f"not started again: {why}")
            self._act = None

    def close(self) -> None:
        """Ends the trail."""
        self._trail.close()


def _calls_for(incident: IncidentDocument) -> tuple[object, ...]:
    advice = incident.advice
    return incident.state, incident.severity, incident.kind, advice and (advice.action, advice.by)


def _because(decision: Decision) -> str:
    said = decision.reason.value
    if decision.incident is not None:
        said += f": {incident_view(decision.incident).verdict} (incident {decision.incident.id})"
    return f"{said}; {decision.detail}" if decision.detail else said


def how_it_ended(ended: Ended) -> str:
    """In words: how long it took, and who needed force or is still there."""
    said = f"the command was ended in {ended.took_s:.1f} s"
    if ended.killed:
        said += f", {ended.killed} process{'es' if ended.killed != 1 else ''} by SIGKILL"
    if ended.left:
        names = ", ".join(f"{pid} ({state})" for pid, state in ended.left)
        said += f"; still there after it, and left behind: {names}"
    return said
