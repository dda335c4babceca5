"""What ``whichrank respond`` does to a real Slurm and how it is undone: each trial says what did not hold, "" nothing.

Not a test module: ``test_slurm.py`` runs the quick ones once, ``benchmarks/slurm_acts.py`` all of them many times.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from tests.commands.respond.parts import incident
from tests.stack.parts.slurm_room import SlurmRoom, until
from whichrank.commands.incident_feeds.feed_position import BEGINNING
from whichrank.commands.incident_service.audit import AuditFile
from whichrank.commands.respond.action_executor import ActionExecutor
from whichrank.commands.respond.action_store import LIVE, ActionStore
from whichrank.commands.respond.breaker import Limits
from whichrank.commands.respond.hooks.slurm import Slurm
from whichrank.commands.respond.planning.acts import HookOperation, HookResult, Why
from whichrank.commands.respond.planning.plan import Policy, act_of
from whichrank.commands.respond.respond_service import make_hooks
from whichrank.commands.settings.respond_options import RespondOptions
from whichrank.diagnosis.hostlist import expand_hostlist
from whichrank.diagnosis.scheduler_facts import facts_of_slurm_job
from whichrank.telemetry.incident import Document
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.response_outcomes import Outcome

SLEEPS = "sleep 600"
WHICHRANK = Path(sys.executable).with_name("whichrank")
#: A cluster's own prolog and epilog, of docs/check.md, and a fault that is put on one of several nodes of a machine.
PACK = f"""
if [ -e {{folder}}/faulty-$SLURMD_NODENAME-%(mode)s ]; then expect="--expect {{folder}}/expect.toml"; fi
{WHICHRANK} check --mode %(mode)s --only storage $expect > {{folder}}/check-$SLURMD_NODENAME.log 2>&1
[ $? -ne 1 ]
"""
EXPECT = '[storage]\nmounts = ["/no-such-mount-of-a-cluster"]\n'
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """asked: in words. is_slow: it takes Slurm's own time-outs (a requeued job waits 5 s at least), or many checks."""

    asked: str
    hold: Callable[[SlurmRoom], str]
    is_slow: bool = False


def hook_of(room: SlurmRoom, **settings: Any) -> Slurm:
    """The hook as ``whichrank respond`` makes it, with the settings' own defaults."""
    options = RespondOptions(respond_hooks="slurm", respond_from=room.folder, **settings)
    hook = make_hooks(options)["slurm"]
    assert isinstance(hook, Slurm)
    return hook


@contextmanager
def within(room: SlurmRoom) -> Iterator[None]:
    """The hook's programs find this Slurm, as those of a service on a cluster do."""
    with mock.patch.dict("os.environ", {name: room.environment[name] for name in ("SLURM_CONF", "PATH")}):
        yield


def told(node: str = "n1", job: str = "") -> Document:
    """An incident of now, with an id of its own."""
    made = incident(next(_numbers), node=node)
    return {**made, "job": {**made["job"], "id": job or made["job"]["id"]}}


def do(room: SlurmRoom, document: Document, operation: HookOperation, target: str, **settings: Any) -> HookResult:
    leave_out = (str(document["suspects"][0]["node"]),) if settings.get("respond_slurm_exclude") else ()
    act = act_of(read_incident(document), "slurm", operation, target, "restart_without_node")
    act = replace(act, leave_out=leave_out)
    with within(room):
        return hook_of(room, **settings).do(act)


def _problems(checks: Mapping[str, bool]) -> str:
    return ", ".join(what for what, holds in checks.items() if not holds)


def _running(room: SlurmRoom, *options: str, text: str = SLEEPS) -> str:
    job = room.submit(text, *options)
    room.wait_for_job(job, "RUNNING")
    return job


@contextmanager
def cleared(room: SlurmRoom) -> Iterator[None]:
    """All jobs are gone behind it, and all nodes serve."""
    try:
        yield
    finally:
        room.run("scancel", "--user=root", "--signal=KILL", "--full", check=False)
        room.run("scancel", "--user=root", check=False)
        for node in room.nodes:
            if room.node(node)[0] not in ("IDLE", "MIXED", "ALLOCATED", "COMPLETING"):
                room.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        until(lambda: not room.run("squeue", "--noheader").strip(), "no job is left")
        until(lambda: all(room.node(node)[0] == "IDLE" for node in room.nodes), "all nodes are idle")


# --- nodes ------------------------------------------------------------------------------------------------------------
def drained_and_given_back(room: SlurmRoom) -> str:
    with cleared(room):
        document = told("n1")
        job = _running(room, "--nodelist=n1")
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
        return _problems(checks)


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
        return _problems(checks)


def a_reboot_of_others_is_not_called_off(room: SlurmRoom) -> str:
    """Dry: the room's RebootProgram writes a line. The job keeps the node from it."""
    with cleared(room):
        document = told("n4")
        _running(room, "--nodelist=n4")
        room.run("scontrol", "reboot", "n4")
        drain = do(room, document, HookOperation.DRAIN_NODE, "n4")
        back = do(room, document, HookOperation.UNDRAIN_NODE, "n4")
        state = room.node("n4")[0]
        room.run("scontrol", "cancel_reboot", "n4")
        after = room.node("n4")[0]
        gone = do(room, document, HookOperation.UNDRAIN_NODE, "n4")
        return _problems(
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
        return _problems(
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
        job = _running(room, "--nodelist=n1")
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
        return _problems(
            {
                "slurmctld says so": "NOT_RESPONDING" in state and "DRAIN" in state,
                "its end is NODE_FAIL": any("JobState=NODE_FAIL" in line for line in ended),
                "respond starts nothing twice": again.outcome is Outcome.ALREADY,
                "it stays out": "DRAIN" in stays,
                "it is given back, whole": back.outcome is Outcome.DONE,
                "one restart": room.job(job)["Restarts"] == "1",
            }
        )


# --- jobs -------------------------------------------------------------------------------------------------------------
def requeued_elsewhere(room: SlurmRoom) -> str:
    with cleared(room):
        job = _running(room)
        node = room.job(job)["NodeList"]
        time.sleep(1.1)
        document = told(node, job)
        drain = do(room, document, HookOperation.DRAIN_NODE, node)
        restart = do(room, document, HookOperation.RESTART_JOB, job)
        waits = do(room, document, HookOperation.RESTART_JOB, job)
        time.sleep(1.0)
        found = room.wait_for_job(job, "RUNNING")
        twice = do(room, document, HookOperation.RESTART_JOB, job)
        return _problems(
            {
                "drained": drain.outcome is Outcome.DONE,
                "requeued": restart.outcome is Outcome.DONE and found["Restarts"] == "1",
                "elsewhere": found["NodeList"] != node,
                "not while it waits": waits.outcome is Outcome.ALREADY,
                "nor once it has started since": twice.outcome is Outcome.ALREADY
                and room.job(job)["JobState"] == "RUNNING",
            }
        )


def what_ended_on_purpose_stays_ended(room: SlurmRoom) -> str:
    with cleared(room):
        cancelled, done, failed = _running(room), room.submit("exit 0"), room.submit("exit 3")
        room.run("scancel", cancelled)
        room.wait_for_job(cancelled, "CANCELLED")
        room.wait_for_job(done, "COMPLETED")
        room.wait_for_job(failed, "FAILED")
        time.sleep(1.1)
        said = {job: do(room, told(), HookOperation.RESTART_JOB, job) for job in (cancelled, done, failed)}
        return _problems(
            {
                "a cancelled job": said[cancelled].why is Why.JOB_ENDED
                and room.job(cancelled)["JobState"] == "CANCELLED",
                "a completed one": said[done].why is Why.JOB_ENDED and room.job(done)["JobState"] == "COMPLETED",
                "a failed one starts again": said[failed].outcome is Outcome.DONE
                and room.job(failed)["Restarts"] == "1",
            }
        )


def one_task_of_an_array(room: SlurmRoom) -> str:
    with cleared(room):
        array = room.submit(SLEEPS, "--array=1-3")
        tasks = [f"{array}_{number}" for number in (1, 2, 3)]
        for task in tasks:
            room.wait_for_job(task, "RUNNING")
        time.sleep(1.1)
        whole = do(room, told(), HookOperation.RESTART_JOB, array)
        one = do(room, told(), HookOperation.RESTART_JOB, tasks[1])
        until(lambda: room.job(tasks[1])["Restarts"] == "1", "the task is requeued", 10.0)
        others = [room.job(task) for task in (tasks[0], tasks[2])]
        return _problems(
            {
                "not by the id of the array": whole.why is Why.WHOLE_ARRAY,
                "by its own": one.outcome is Outcome.DONE,
                "the others go on": all(job["JobState"] == "RUNNING" and job["Restarts"] == "0" for job in others),
            }
        )


def excluded_by_one_job(room: SlurmRoom) -> str:
    """Without an operator's rights: the job leaves the node out, others may have it."""
    exclude = ["scontrol", "update", "jobid={job}", "excnodelist={nodes}"]
    with cleared(room):
        job = _running(room, "--exclude=n4")
        node = room.job(job)["NodeList"]
        time.sleep(1.1)
        said = do(room, told(node, job), HookOperation.RESTART_JOB, job, respond_slurm_exclude=exclude)
        waiting = room.job(job)
        excluded = waiting.get("ExcNodeList", "")
        room.wait_for_job(job, "RUNNING")
        found, other = room.job(job), _running(room, f"--nodelist={node}")
        # Undone as Slurm allows it: while the job is held; with the job it is over.
        room.run("scontrol", "requeuehold", job)
        until(lambda: room.job(job)["JobState"] == "PENDING", "it is held")
        room.run("scontrol", "update", f"jobid={job}", "excnodelist=")
        return _problems(
            {
                f"done ({said.detail})": said.outcome is Outcome.DONE,
                "what it left out before, too": {"n4", node} <= set(expand_hostlist(excluded)),
                "elsewhere": found["NodeList"] not in (node, "n4") and found["Restarts"] == "1",
                "others may have it": room.job(other)["NodeList"] == node and room.node(node)[1] == "",
                "undone": room.job(job).get("ExcNodeList", "(null)") in ("(null)", ""),
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
        fit = _running(room, "--nodelist=n2")
        checks["a fit node serves"] = room.job(fit)["JobState"] == "RUNNING"
        return _problems(checks)


def ends_are_told(room: SlurmRoom) -> str:
    """Without accounting: by ``scontrol show job``, as the agent's collector reads it."""
    with cleared(room):
        jobs = {"FAILED": room.submit("exit 7"), "COMPLETED": room.submit("exit 0"), "CANCELLED": _running(room)}
        room.run("scancel", jobs["CANCELLED"])
        for state, job in jobs.items():
            room.wait_for_job(job, state)
        said = {}
        for state, job in jobs.items():
            facts = facts_of_slurm_job(room.run("scontrol", "-o", "show", "job", job, SLURM_TIME_FORMAT="%s"))
            said[state] = next(fact.values["state"] for fact in facts if fact.what == "state")
        ended = (room.folder / "jobcomp").read_text()
        return _problems(
            {state: said[state] == state for state in jobs}
            | {f"{state} in jobcomp": f"JobId={job} " in ended for state, job in jobs.items()}
        )


def one_id_on_all_nodes(room: SlurmRoom) -> str:
    """``whichrank run`` in a step calls the job on each node as ``squeue`` does, tasks of arrays too."""
    text = f"srun --ntasks-per-node=1 {WHICHRANK} run --view none -- sh -c 'echo id=$WHICHRANK_JOB_ID'; {SLEEPS}"
    checks = {}
    with cleared(room):
        for options in ((), ("--array=7",)):
            job = room.submit(text, "--nodes=2", "--ntasks=2", *options)
            until(lambda job=job: room.said(job).count("id=") == 2, f"both nodes say it: {room.said(job)}", 120.0)
            shown = room.run("squeue", "--noheader", "--format=%i", f"--jobs={job}").strip()
            named = [line.strip() for line in room.said(job).splitlines() if line.startswith("id=")]
            checks[f"{shown} is called {named}"] = named == [f"id={shown}"] * 2
    return _problems(checks)


TRIALS: Mapping[str, Trial] = {
    "drain": Trial(asked="drain, the job goes on; given back", hold=drained_and_given_back),
    "others": Trial(asked="what others drained stays", hold=what_others_drained_stays),
    "reboot": Trial(asked="others' reboot (dry) stands", hold=a_reboot_of_others_is_not_called_off),
    "expiry": Trial(asked="a drain expires by itself", hold=a_drain_expires),
    "requeue": Trial(asked="requeue: once, elsewhere", hold=requeued_elsewhere, is_slow=True),
    "ended": Trial(asked="ended on purpose stays ended", hold=what_ended_on_purpose_stays_ended),
    "array": Trial(asked="one task of an array", hold=one_task_of_an_array),
    "exclude": Trial(asked="ExcNodeList; undone", hold=excluded_by_one_job, is_slow=True),
    "prolog": Trial(asked="prolog with whichrank check", hold=prolog_takes_a_bad_node_out, is_slow=True),
    "epilog": Trial(asked="epilog with whichrank check", hold=epilog_takes_a_bad_node_out, is_slow=True),
    "ends": Trial(asked="end states", hold=ends_are_told),
    "id": Trial(asked="a job's id, on two nodes", hold=one_id_on_all_nodes, is_slow=True),
    "lost": Trial(asked="slurmctld loses a node; it comes back", hold=a_lost_node_comes_back, is_slow=True),
}


def room_with_pack(nodes: int = 4) -> SlurmRoom:
    """With prolog and epilog of docs/check.md."""
    lines = "Prolog={folder}/prolog\nEpilog={folder}/epilog\nPrologFlags=Alloc\nPrologEpilogTimeout=60"
    room = SlurmRoom(nodes, further=lines)
    for mode in ("prolog", "epilog"):
        room.script(mode, PACK.replace("%(mode)s", mode).replace("{folder}", str(room.folder)))
    (room.folder / "expect.toml").write_text(EXPECT)
    return room
