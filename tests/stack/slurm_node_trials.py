"""What ``whichrank respond`` and ``check`` do to nodes of a real Slurm, and how it is undone. Not a test module.

Each trial says what did not hold, "" nothing.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.stack.parts.slurm_room import SlurmRoom, until
from tests.stack.slurm_desk import SLEEPS, WHICHRANK, cleared, do, hook_of, running, told, what_did_not, within
from whichrank.commands.incident_feeds.feed_position import BEGINNING
from whichrank.commands.incident_service.audit import AuditFile
from whichrank.commands.respond.action_executor import ActionExecutor
from whichrank.commands.respond.action_store import LIVE, ActionStore
from whichrank.commands.respond.breaker import Limits
from whichrank.commands.respond.planning.acts import HookOperation, Why
from whichrank.commands.respond.planning.plan import Policy
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.response_outcomes import Outcome

#: A cluster's own prolog and epilog, of docs/check.md, and a fault that is put on one of several nodes of a machine.
PACK = f"""
if [ -e {{folder}}/faulty-$SLURMD_NODENAME-%(mode)s ]; then expect="--expect {{folder}}/expect.toml"; fi
{WHICHRANK} check --mode %(mode)s --only storage $expect > {{folder}}/check-$SLURMD_NODENAME.log 2>&1
[ $? -ne 1 ]
"""
EXPECT = '[storage]\nmounts = ["/no-such-mount-of-a-cluster"]\n'


def drained_and_given_back(room: SlurmRoom) -> str:
    with cleared(room):
        document = told("n1")
        job = running(room, "--nodelist=n1")
        drain = do(room, document, HookOperation.DRAIN_NODE, "n1")
        state, reason = room.node("n1")
        waits = room.submit(SLEEPS, "--nodelist=n1")
        until(
            lambda: "ReqNodeNotAvail" in room.job(waits)["Reason"] or "Resources" in room.job(waits)["Reason"], "waits"
        )
        checks = {
            "it is drained": drain.outcome is Outcome.DONE and "DRAIN" in state,
            "its reason names the incident": reason.startswith(f"whichrank {document['id']} "),
            "the job goes on": room.job(job)["JobState"] == "RUNNING",
            "no other is put there": room.job(waits)["JobState"] == "PENDING",
            "twice is already": do(room, document, HookOperation.DRAIN_NODE, "n1").outcome is Outcome.ALREADY,
        }
        checks["it is given back"] = do(room, document, HookOperation.UNDRAIN_NODE, "n1").outcome is Outcome.DONE
        room.wait_for_job(waits, "RUNNING")
        checks["nothing is left of it"] = "DRAIN" not in room.node("n1")[0] and not room.node("n1")[1]
        return what_did_not(checks)


def what_others_drained_stays(room: SlurmRoom) -> str:
    with cleared(room):
        document = told("n2")
        room.run("scontrol", "update", "nodename=n2", "state=drain", "reason=broken fan")
        drain = do(room, document, HookOperation.DRAIN_NODE, "n2")
        back = do(room, document, HookOperation.UNDRAIN_NODE, "n2")
        checks = {
            "left as it is": drain.outcome is Outcome.ALREADY and "broken fan" in drain.detail,
            "not given back": back.why is Why.CHANGED_BY_OTHERS and room.node("n2")[1].startswith("broken fan"),
        }
        do(room, document, HookOperation.DRAIN_NODE, "n3")
        room.run("scontrol", "update", "nodename=n3", "state=drain", "reason=they test it")
        back = do(room, document, HookOperation.UNDRAIN_NODE, "n3")
        checks["taken over by others"] = back.why is Why.CHANGED_BY_OTHERS and "DRAIN" in room.node("n3")[0]
        return what_did_not(checks)


def a_reboot_of_others_is_not_called_off(room: SlurmRoom) -> str:
    """Dry: the room's RebootProgram writes a line. The job keeps the node from it."""
    with cleared(room):
        document = told("n4")
        running(room, "--nodelist=n4")
        room.run("scontrol", "reboot", "n4")
        drain = do(room, document, HookOperation.DRAIN_NODE, "n4")
        back = do(room, document, HookOperation.UNDRAIN_NODE, "n4")
        state = room.node("n4")[0]
        room.run("scontrol", "cancel_reboot", "n4")
        after = room.node("n4")[0]
        gone = do(room, document, HookOperation.UNDRAIN_NODE, "n4")
        return what_did_not(
            {
                "it is drained": drain.outcome is Outcome.DONE,
                "the reboot stands": back.why is Why.CHANGED_BY_OTHERS and "REBOOT_REQUESTED" in state,
                "called off by its own people": "REBOOT" not in after,
                "then given back": gone.outcome is Outcome.DONE or "DRAIN" not in after,
                "nothing was rebooted": not (room.folder / "reboots").exists(),
            }
        )


def a_drain_expires(room: SlurmRoom) -> str:
    """Also one that its incident still asks for; not what others have taken over since."""
    with cleared(room), within(room), tempfile.TemporaryDirectory() as folder:
        store, audit = ActionStore(Path(folder), LIVE), AuditFile(Path(folder))
        hook = hook_of(room)
        policy = Policy(
            actions=frozenset({"restart_without_node"}), scopes=frozenset({"gpu"}), confidence=0.9, max_age_s=900.0,
            hooks={"slurm": frozenset({HookOperation.DRAIN_NODE})},
        )  # fmt: skip
        limits = Limits(acts_per_hour=30, nodes_per_hour=4, nodes_share=1.0, cluster_nodes=4)
        executor = ActionExecutor(
            store, audit, {"slurm": hook}, policy, limits, undo=False, drain_expires_s=3600.0, tell=lambda _: None
        )
        now = time.time()
        told_of = [(read_incident(told(node)), now) for node in ("n1", "n2")]
        store.take(told_of, BEGINNING, now, 0.0)
        executor.turn(now)
        drained = [room.node(node)[0] for node in ("n1", "n2")]
        executor.turn(now + 3599.0)
        early = [room.node(node)[0] for node in ("n1", "n2")]
        room.run("scontrol", "update", "nodename=n2", "state=drain", "reason=they test it")
        executor.turn(now + 3601.0)
        late = [room.node(node)[0] for node in ("n1", "n2")]
        executor.turn(now + 3602.0)
        lines = (Path(folder) / "respond-audit.jsonl").read_text()
        out = store.nodes_out(now + 3602.0)
        store.close()
        audit.close()
        return what_did_not(
            {
                "both are drained": all("DRAIN" in state for state in drained),
                "not before its time": all("DRAIN" in state for state in early),
                "back by itself": "DRAIN" not in late[0],
                "not what others took over": "DRAIN" in late[1],
                "it counts no more": "n1" not in out,
                "said once": lines.count("undrain_node n1 by slurm") == 2 and lines.count("changed_by_others") == 1,
            }
        )


def a_lost_node_comes_back(room: SlurmRoom) -> str:
    """slurmd and the job's processes are killed; slurmctld finds out, requeues the job, and respond adds nothing."""
    with cleared(room):
        document = told("n1")
        job = running(room, "--nodelist=n1")
        time.sleep(1.1)  # its start is before the incident, also in whole seconds
        do(room, document, HookOperation.DRAIN_NODE, "n1")
        room.kill_node("n1")
        state = room.wait_for_node("n1", lambda state: "DOWN" in state)
        until(lambda: room.job(job)["JobState"] == "PENDING", "slurmctld has requeued it")
        again = do(room, document, HookOperation.RESTART_JOB, job)
        ended = [line for line in (room.folder / "jobcomp").read_text().splitlines() if f"JobId={job} " in line]
        room.start_node("n1")
        until(lambda: "NOT_RESPONDING" not in room.node("n1")[0], "slurmd is back")
        stays = room.node("n1")[0]
        back = do(room, document, HookOperation.UNDRAIN_NODE, "n1")
        room.wait_for_job(job, "RUNNING")
        return what_did_not(
            {
                "slurmctld says so": "NOT_RESPONDING" in state and "DRAIN" in state,
                "its end is NODE_FAIL": any("JobState=NODE_FAIL" in line for line in ended),
                "respond starts nothing twice": again.outcome is Outcome.ALREADY,
                "it stays out": "DRAIN" in stays,
                "it is given back, whole": back.outcome is Outcome.DONE,
                "one restart": room.job(job)["Restarts"] == "1",
            }
        )


def prolog_takes_a_bad_node_out(room: SlurmRoom) -> str:
    return _pack(room, "prolog")


def epilog_takes_a_bad_node_out(room: SlurmRoom) -> str:
    return _pack(room, "epilog")


def _pack(room: SlurmRoom, mode: str) -> str:
    """docs/check.md as it stands: status 1 drains the node; a job whose prolog said so starts elsewhere."""
    marker = room.folder / f"faulty-n1-{mode}"
    with cleared(room):
        marker.touch()
        try:
            job = room.submit("exit 0", "--nodelist=n1") if mode == "epilog" else room.submit(SLEEPS)
            state = room.wait_for_node("n1", lambda state: "DRAIN" in state)
            checks = {"drained by Slurm": "DRAIN" in state, "with a reason": bool(room.node("n1")[1])}
            if mode == "prolog":
                until(
                    lambda: room.job(job)["Restarts"] == "1" or room.job(job)["NodeList"] not in ("n1", ""), "requeued"
                )
                marker.unlink()
                if room.job(job)["JobState"] != "RUNNING":
                    room.run("scontrol", "release", job, check=False)
                found = room.wait_for_job(job, "RUNNING")
                checks["the job runs elsewhere"] = found["NodeList"] != "n1"
            else:
                checks["the job's end stays"] = room.job(job)["JobState"] == "COMPLETED"
        finally:
            marker.unlink(missing_ok=True)
        fit = running(room, "--nodelist=n2")
        checks["a fit node serves"] = room.job(fit)["JobState"] == "RUNNING"
        return what_did_not(checks)


def room_with_pack(nodes: int = 4) -> SlurmRoom:
    """With prolog and epilog of docs/check.md."""
    lines = "Prolog={folder}/prolog\nEpilog={folder}/epilog\nPrologFlags=Alloc\nPrologEpilogTimeout=60"
    room = SlurmRoom(nodes, further=lines)
    for mode in ("prolog", "epilog"):
        room.script(mode, PACK.replace("%(mode)s", mode).replace("{folder}", str(room.folder)))
    (room.folder / "expect.toml").write_text(EXPECT)
    return room
