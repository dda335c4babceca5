"""A drain that expires by itself: with the executor, a store on disk and a played scontrol; its clock is the test's."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.commands.respond.parts import FakeSlurm, incident
from tests.commands.respond.test_hooks import COMMANDS
from whichrank.commands.incident_feeds.feed_position import BEGINNING
from whichrank.commands.incident_service.audit import AUDIT_FILE, AuditFile
from whichrank.commands.respond.action_executor import ActionExecutor
from whichrank.commands.respond.action_store import LIVE, ActionStore
from whichrank.commands.respond.breaker import Limits
from whichrank.commands.respond.hooks.slurm import Slurm
from whichrank.commands.respond.planning.plan import Policy
from whichrank.telemetry.incident_reading import read_incident

EXPIRES_S = 3600.0
HOOK = Slurm(COMMANDS)
POLICY = Policy(
    actions=frozenset({"restart_without_node"}),
    scopes=frozenset({"gpu"}),
    confidence=0.9,
    max_age_s=900.0,
    hooks={"slurm": HOOK.can},
)


def executor(store: ActionStore, audit: AuditFile, acts_per_hour: int = 30) -> ActionExecutor:
    limits = Limits(acts_per_hour=acts_per_hour, nodes_per_hour=2, nodes_share=0.5, cluster_nodes=100)
    return ActionExecutor(
        store,
        audit,
        {"slurm": HOOK},
        POLICY,
        limits,
        undo=False,
        drain_expires_s=EXPIRES_S,
        tell=lambda _: None,
    )


def test_a_node_is_given_back_when_its_time_is_over_and_not_again(tmp_path: Path, on_path: FakeSlurm) -> None:
    now = time.time()
    store, audit = ActionStore(tmp_path, LIVE), AuditFile(tmp_path)
    store.take([(read_incident(incident(n, node=f"node-{n}")), now) for n in (1, 2)], BEGINNING, now, 0.0)
    executor(store, audit).turn(now)
    assert {name: on_path.nodes()[name]["State"] for name in ("node-1", "node-2")} == dict.fromkeys(
        ("node-1", "node-2"), "IDLE+DRAIN"
    )
    on_path.put("node-2", "IDLE+DRAIN", "they test it")
    after = executor(store, audit)  # of the service's next life
    for late_s in (-1.0, 1.0, 2.0, 3.0):
        after.turn(now + EXPIRES_S + late_s)
        assert on_path.nodes()["node-1"]["State"] == ("IDLE+DRAIN" if late_s < 0 else "IDLE")
    assert on_path.nodes()["node-2"]["Reason"] == "they test it"
    told = [json.loads(line) for line in (tmp_path / AUDIT_FILE).read_text().splitlines()]
    told = [line for line in told if line.get("operation") == "undrain_node"]
    assert [(line["target"], line["outcome"]) for line in told] == [
        ("node-1", "begun"), ("node-1", "done"), ("node-2", "begun"), ("node-2", "refused"),
    ]  # fmt: skip
    assert "node-1" not in store.nodes_out(now + EXPIRES_S + 4.0)
    store.close()
    audit.close()


def test_the_breaker_holds_it_back_without_a_word_at_each_turn(tmp_path: Path, on_path: FakeSlurm) -> None:
    now = time.time()
    store, audit = ActionStore(tmp_path, LIVE), AuditFile(tmp_path)
    store.take([(read_incident(incident(1)), now)], BEGINNING, now, 0.0)
    desk = executor(store, audit)
    desk.turn(now)
    store.open_breaker("a test", now)
    before = (tmp_path / AUDIT_FILE).read_text()
    for late_s in (1.0, 2.0, 3.0):
        desk.turn(now + EXPIRES_S + late_s)
    assert (tmp_path / AUDIT_FILE).read_text() == before
    store.reset_breaker(now + EXPIRES_S + 4.0)
    desk.turn(now + EXPIRES_S + 5.0)
    assert on_path.nodes()["node-1"]["State"] == "IDLE"
    store.close()
    audit.close()
