"""What becomes of incidents: done once, held by the breaker, written down, given back; over restarts and failures."""

from __future__ import annotations

import errno
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.commands.respond.parts import NODE, SECRET, FakeSlurm, Receiver, incident
from tests.commands.respond.test_hooks import COMMANDS
from whichrank.commands.incident_feeds.feed_position import BEGINNING
from whichrank.commands.incident_service.audit import AUDIT_FILE, AuditFile, AuditLine
from whichrank.commands.respond.action_executor import ActionExecutor
from whichrank.commands.respond.action_store import DRY, LIVE, ActionStore
from whichrank.commands.respond.breaker import Limits
from whichrank.commands.respond.hooks import Hook
from whichrank.commands.respond.hooks.slurm import Slurm
from whichrank.commands.respond.hooks.webhook_hook import WebhookHook
from whichrank.commands.respond.planning.acts import Act, HookOperation, HookResult
from whichrank.commands.respond.planning.plan import Policy
from whichrank.telemetry.incident import Document
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.response_outcomes import Outcome

N = 4
LIMITS = Limits(acts_per_hour=10_000, nodes_per_hour=N, nodes_share=0.5, cluster_nodes=1000)
SETTLE_S = 30.0


class Office:
    """An executor with real hooks and a store on disk; its clock is the test's."""

    def __init__(
        self, folder: Path, hooks: dict[str, Hook], *, mode: str = LIVE, limits: Limits = LIMITS, undo: bool = False
    ) -> None:
        self.folder = folder
        self.now = time.time()
        self.told: list[dict[str, Any]] = []
        self._how = (hooks, mode, limits, undo)
        self._open(*self._how)

    def _open(self, hooks: dict[str, Hook], mode: str, limits: Limits, undo: bool) -> None:
        self.is_closed = False
        self.store = ActionStore(self.folder, mode)
        self.audit = AuditFile(self.folder)
        policy = Policy(
            actions=frozenset({"retry", "restart", "restart_without_node", "drain_after_job"}),
            scopes=frozenset({"gpu", "node", "rank"}),
            confidence=0.9,
            max_age_s=900.0,
            hooks={name: hook.can for name, hook in hooks.items()},
        )
        self.desk = ActionExecutor(
            self.store, self.audit, hooks, policy, limits, undo=undo, tell=lambda told: self.told.append(told.written())
        )
        self.desk.begin(self.now)

    def restart(self) -> None:
        self.close()
        self._open(*self._how)

    def close(self) -> None:
        if not self.is_closed:
            self.store.close()
            self.audit.close()
        self.is_closed = True

    def hear(self, *documents: Document, after_s: float = SETTLE_S) -> None:
        """Told now; looked at so long after."""
        self.store.take([(read_incident(document), self.now) for document in documents], BEGINNING, self.now, SETTLE_S)
        self.now += after_s
        self.desk.turn(self.now)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / AUDIT_FILE).read_text().splitlines()]

    def outcomes(self) -> list[tuple[str, str]]:
        return [(line["outcome"], line.get("operation") or line.get("why") or "") for line in self.lines()]


@pytest.fixture
def office(tmp_path: Path, on_path: FakeSlurm, receiver: Receiver) -> Any:
    made: list[Office] = []

    def make(*, hooks: dict[str, Hook] | None = None, **settings: Any) -> Office:
        webhook = WebhookHook(receiver.url, SECRET, tries=2, timeout_s=5.0)
        opened = Office(
            tmp_path / "state", {"slurm": Slurm(COMMANDS), "webhook": webhook} if hooks is None else hooks, **settings
        )
        made.append(opened)
        return opened

    yield make
    for each in made:
        each.close()


def test_done_in_order_and_written_down(office: Any, on_path: FakeSlurm, receiver: Receiver) -> None:
    desk = office()
    desk.hear(incident())
    assert [call[0] for call in on_path.calls()] == ["show", "update", "requeue"]
    assert len(receiver.good) == 1
    order = ("drain_node", "restart_job", "tell")
    assert desk.outcomes() == [(outcome, each) for each in order for outcome in ("begun", "done")]
    assert desk.told == desk.lines(), "what is told is what is written down"
    assert {line["incident"] for line in desk.lines()} == {f"{1:016x}"}


def test_a_dry_run_calls_nobody_and_says_what_it_would_do(office: Any, on_path: FakeSlurm, receiver: Receiver) -> None:
    desk = office(mode=DRY)
    desk.hear(incident())
    assert (on_path.calls(), receiver.requests) == ([], 0)
    assert [outcome for outcome, _ in desk.outcomes()] == ["would"] * 3
    assert desk.lines()[0]["detail"] == (
        "scontrol update nodename=node-1 state=drain reason=whichrank 0000000000000001 rank_not_entered xid_79"
    )


def test_a_dry_run_before_does_not_keep_the_real_one_from_acting(office: Any, on_path: FakeSlurm) -> None:
    dry = office(mode=DRY)
    dry.hear(incident())
    dry.close()
    live = office()
    live.now = dry.now
    live.hear(incident(revision=2, confidence=0.96))
    assert len(on_path.calls("update")) == 1


def test_advice_must_have_stood_for_a_while(office: Any, on_path: FakeSlurm) -> None:
    desk = office()
    desk.hear(incident(action="retry", cause=None, scope="rank"), after_s=5.0)
    assert on_path.calls() == []
    desk.hear(incident(revision=2), after_s=SETTLE_S - 1.0)
    assert on_path.calls() == [], "it has changed, and stands anew"
    desk.hear(after_s=1.0)
    assert [call[0] for call in on_path.calls()] == ["show", "update", "requeue"]


def test_what_is_over_before_its_time_is_left_alone(office: Any, on_path: FakeSlurm) -> None:
    desk = office()
    desk.hear(incident(), after_s=5.0)
    desk.hear(incident(revision=2, state="resolved", change="resolved"), after_s=SETTLE_S)
    assert on_path.calls() == []
    assert desk.lines() == []


def held(desk: Office, seconds: float) -> dict[str, Any]:
    return {"until": desk.now + seconds, "because": "another job was hit at the same time"}


def test_a_held_incident_waits_until_its_time_has_passed(office: Any, on_path: FakeSlurm) -> None:
    desk = office()
    desk.hear(incident(hold=held(desk, SETTLE_S + 20.0)))
    assert (on_path.calls(), desk.lines(), desk.store.waiting()) == ([], [], 1)
    desk.hear(after_s=19.0)
    assert on_path.calls() == []
    desk.restart()
    desk.hear(after_s=1.001)  # a document's times are whole microseconds
    assert [call[0] for call in on_path.calls()] == ["show", "update", "requeue"], "nobody has said anything since"


def test_a_hold_that_is_gone_leaves_the_usual_time(office: Any, on_path: FakeSlurm) -> None:
    desk = office()
    desk.hear(incident(hold=held(desk, 1000.0)), after_s=5.0)
    desk.hear(incident(revision=2), after_s=SETTLE_S - 1.0)
    assert on_path.calls() == []
    desk.hear(after_s=1.0)
    assert len(on_path.calls("update")) == 1


def test_nothing_is_done_for_one_that_merges_while_it_is_held(office: Any, on_path: FakeSlurm) -> None:
    """Its leader speaks for it, and advises for all of them."""
    desk = office()
    desk.hear(incident(hold=held(desk, SETTLE_S + 20.0)), after_s=5.0)
    leader = f"{2:016x}"
    desk.hear(incident(revision=2, state="merged", merged_into=leader, change="merged"), after_s=1000.0)
    assert (on_path.calls(), desk.lines(), desk.store.waiting()) == ([], [], 0)


def test_an_old_incident_that_is_published_again_is_old(office: Any, on_path: FakeSlurm) -> None:
    """As on the first start of the service, on a topic that keeps what is open."""
    desk = office()
    old = desk.now - 86_400.0
    times = {"onset": old, "detected": old, "attributed": old, "resolved": None}
    desk.hear(incident(1, times=times))
    assert (on_path.calls(), [line["why"] for line in desk.lines()]) == ([], ["too_old"])
    desk.hear(incident(1, revision=2, times=times, confidence=0.99))
    assert len(on_path.calls("update")) == 1, "what changes while we listen is news"


def test_nothing_is_done_twice_over_revisions_and_restarts(office: Any, on_path: FakeSlurm, receiver: Receiver) -> None:
    desk = office()
    for revision in range(1, 6):
        desk.hear(incident(revision=revision, confidence=0.9 + revision / 100))
        desk.restart()
    desk.hear(incident(revision=9, state="resolved", change="resolved"))
    desk.hear(incident(revision=10, change="reopened"))
    assert [call[0] for call in on_path.calls() if call[0] != "show"] == ["update", "requeue"]
    assert len(receiver.good) == 1


def test_two_incidents_of_one_attempt_start_it_again_once(office: Any, on_path: FakeSlurm) -> None:
    job = {"id": "77", "attempt": "0"}
    office().hear(*(incident(number, action="restart", scope="rank", cause=None, job=job) for number in (1, 2)))
    assert on_path.calls("requeue") == [["requeue", "77"]]


class Dies(Exception):
    pass


class DyingHook:
    """The service dies while this hook works."""

    name = "slurm"
    can = Slurm.can

    def __init__(self) -> None:
        self.calls: list[str] = []

    def describe(self, act: Act) -> str:
        return act.operation.value

    def do(self, act: Act) -> HookResult:
        self.calls.append(act.operation.value)
        raise Dies


def test_what_was_begun_before_a_crash_is_not_done_again_and_told(office: Any) -> None:
    hook = DyingHook()
    desk = office(hooks={"slurm": hook})
    with pytest.raises(Dies):
        desk.hear(incident())
    desk.restart()
    desk.hear()
    assert hook.calls == ["drain_node"], "and the job is not started again on a node that may be in"
    assert desk.outcomes() == [("begun", "drain_node"), ("unfinished", "drain_node"), ("refused", "restart_job")]
    assert "look" in desk.lines()[1]["text"]


def test_a_drain_that_fails_keeps_the_job_off_the_node(office: Any, on_path: FakeSlurm, receiver: Receiver) -> None:
    on_path.fail()
    desk = office()
    desk.hear(incident())
    assert on_path.calls("requeue") == []
    assert ("failed", "drain_node") in desk.outcomes()
    assert ("refused", "restart_job") in desk.outcomes()
    assert len(receiver.good) == 1, "somebody is told all the same"


# --- the breaker ------------------------------------------------------------------------------------------------------
def storm(count: int, first: int = 1, at: float | None = None) -> list[Document]:
    return [incident(number, node=f"node-{number}", at=at) for number in range(first, first + count)]


def test_in_a_storm_of_300_incidents_the_breaker_holds(office: Any, on_path: FakeSlurm, receiver: Receiver) -> None:
    desk = office()
    desk.hear(*storm(300))
    drained = {words[1] for words in on_path.calls("update")}
    assert len(drained) == N
    assert len(on_path.calls("requeue")) == len(receiver.good) == N
    lines = desk.lines()
    assert sum(line["outcome"] == "breaker_opened" for line in lines) == 1
    refused = [line for line in lines if line["outcome"] == "refused"]
    assert ({line["why"] for line in refused}, len(refused)) == ({"breaker_open"}, 300 - N)
    assert f"would be node {N + 1} within an hour; {N} are allowed" in desk.store.breaker().why


def test_it_stays_open_over_hours_and_restarts_for_everything_until_a_person_resets_it(
    office: Any, on_path: FakeSlurm
) -> None:
    desk = office()
    desk.hear(*storm(N + 1))
    desk.now += 5 * 3600.0
    desk.restart()
    desk.hear(incident(900, action="retry", cause=None, scope="rank", at=desk.now))
    assert len(on_path.calls("requeue")) == N, "nothing at all is done"
    desk.store.reset_breaker(desk.now)
    desk.now += 1.0
    desk.hear(*storm(2, first=500, at=desk.now))
    assert len({words[1] for words in on_path.calls("update")}) == N + 2


def test_a_share_of_the_cluster_holds_slowly_too(office: Any, on_path: FakeSlurm) -> None:
    desk = office(limits=Limits(acts_per_hour=99, nodes_per_hour=2, nodes_share=0.05, cluster_nodes=100))
    for number in range(1, 9):
        desk.hear(*storm(1, first=number, at=desk.now))
        desk.now += 2 * 3600.0
    assert len(on_path.calls("update")) == 5
    assert "5 are allowed" in desk.store.breaker().why


def test_the_same_node_in_many_incidents_is_one_node(office: Any, on_path: FakeSlurm) -> None:
    desk = office(limits=Limits(acts_per_hour=99, nodes_per_hour=1, nodes_share=0.5, cluster_nodes=100))
    desk.hear(*(incident(number) for number in range(1, 9)))
    assert desk.store.breaker().why is None
    assert len(on_path.calls("update")) == 1, "it is drained already"
    assert len(on_path.calls("requeue")) == 8


def test_a_webhook_alone_counts_nodes_as_well(office: Any, receiver: Receiver) -> None:
    """Its receiver takes them out."""
    desk = office(hooks={"webhook": WebhookHook(receiver.url, SECRET, tries=1, timeout_s=5.0)})
    desk.hear(*storm(20))
    assert len(receiver.good) == N


def test_a_node_that_others_had_out_before_is_not_ours_to_count(office: Any, on_path: FakeSlurm) -> None:
    on_path.put(NODE, "IDLE+DRAIN", "maintenance")
    desk = office()
    desk.hear(incident())
    assert desk.store.nodes_out(desk.now) == {}
    assert len(on_path.calls("requeue")) == 1, "it is out, so the job may start"


def test_a_hook_has_its_rate(office: Any, on_path: FakeSlurm, receiver: Receiver) -> None:
    desk = office(limits=Limits(acts_per_hour=5, nodes_per_hour=99, nodes_share=0.5, cluster_nodes=1000))
    desk.hear(*storm(9))
    assert len(on_path.calls("requeue")) == 2, "two acts each: a third would be the sixth"
    assert desk.desk.refusals["rate_limited"] == 7
    assert desk.store.breaker().why is None
    desk.now += 3600.0
    desk.hear(*storm(1, first=50, at=desk.now))
    assert len(on_path.calls("requeue")) == 3


# --- back again -------------------------------------------------------------------------------------------------------
def resolved(number: int = 1, node: str = NODE) -> Document:
    return incident(number, node=node, revision=5, state="resolved", change="resolved")


def test_a_node_comes_back_only_where_that_is_configured(office: Any, on_path: FakeSlurm) -> None:
    desk = office()
    desk.hear(incident())
    desk.hear(resolved())
    assert on_path.nodes()[NODE]["State"] == "IDLE+DRAIN"


def test_a_node_comes_back_when_no_incident_needs_it_out_any_more(office: Any, on_path: FakeSlurm) -> None:
    desk = office(undo=True)
    desk.hear(incident(1), incident(2))
    desk.hear(resolved(1))
    assert on_path.nodes()[NODE]["State"] == "IDLE+DRAIN", "the second one is open"
    desk.hear(resolved(2))
    assert on_path.nodes()[NODE]["State"] == "IDLE"


def test_a_node_comes_back_once(office: Any, on_path: FakeSlurm) -> None:
    desk = office(undo=True)
    desk.hear(incident())
    desk.hear(resolved())
    assert on_path.nodes()[NODE]["State"] == "IDLE"
    assert desk.store.nodes_out(desk.now) == {}
    on_path.put(NODE, "IDLE+DRAIN", "somebody's own")
    desk.restart()
    desk.hear(incident(revision=6, change="reopened"))
    desk.hear(incident(revision=7, state="resolved", change="resolved"))
    assert on_path.nodes()[NODE]["Reason"] == "somebody's own"


# --- what cannot be written down is not done --------------------------------------------------------------------------
def test_without_the_audit_file_nothing_is_done(
    office: Any, on_path: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = office()
    with monkeypatch.context() as full:
        full.setattr("os.fdatasync", _no_room)
        with pytest.raises(OSError, match="No space"):
            desk.hear(incident())
    assert on_path.calls() == []
    desk.hear(after_s=1.0)
    assert [call[0] for call in on_path.calls()] == ["show", "update", "requeue"], "it waited"


def _no_room(number: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_one_service_per_folder(tmp_path: Path) -> None:
    first = ActionStore(tmp_path, LIVE)
    with pytest.raises(BlockingIOError):
        ActionStore(tmp_path, LIVE)
    ActionStore(tmp_path, LIVE, exclusive=False).close()
    first.close()
    ActionStore(tmp_path, LIVE).close()


def test_a_torn_line_stays_and_the_next_begins_anew(tmp_path: Path) -> None:
    (tmp_path / AUDIT_FILE).write_bytes(b'{"outcome": "do')
    audit = AuditFile(tmp_path)
    audit.write(AuditLine(time=1.0, outcome=Outcome.DONE.value, mode=LIVE, operation=HookOperation.TELL.value))
    audit.close()
    lines = (tmp_path / AUDIT_FILE).read_text().splitlines()
    assert (len(lines), json.loads(lines[1])["outcome"]) == (2, "done")
