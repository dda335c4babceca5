"""What ``whichrank`` does to jobs of a real Slurm, and how it is undone. Not a test module.

Each trial says what did not hold, "" nothing.
"""

from __future__ import annotations

import time

from tests.stack.parts.slurm_room import SlurmRoom, until
from tests.stack.slurm_desk import SLEEPS, WHICHRANK, cleared, do, running, told, what_did_not
from whichrank.commands.respond.planning.acts import HookOperation, Why
from whichrank.commands.supervise.node_exclusion import without_node
from whichrank.diagnosis.hostlist import expand_hostlist
from whichrank.diagnosis.scheduler_facts import facts_of_slurm_job
from whichrank.telemetry.response_outcomes import Outcome


def requeued_elsewhere(room: SlurmRoom) -> str:
    with cleared(room):
        job = running(room)
        node = room.job(job)["NodeList"]
        time.sleep(1.1)
        document = told(node, job)
        drain = do(room, document, HookOperation.DRAIN_NODE, node)
        restart = do(room, document, HookOperation.RESTART_JOB, job)
        waits = do(room, document, HookOperation.RESTART_JOB, job)
        time.sleep(1.0)
        found = room.wait_for_job(job, "RUNNING")
        twice = do(room, document, HookOperation.RESTART_JOB, job)
        return what_did_not(
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
        cancelled, done, failed = running(room), room.submit("exit 0"), room.submit("exit 3")
        room.run("scancel", cancelled)
        room.wait_for_job(cancelled, "CANCELLED")
        room.wait_for_job(done, "COMPLETED")
        room.wait_for_job(failed, "FAILED")
        time.sleep(1.1)
        said = {job: do(room, told(), HookOperation.RESTART_JOB, job) for job in (cancelled, done, failed)}
        return what_did_not(
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
        return what_did_not(
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
        job = running(room, "--exclude=n4")
        node = room.job(job)["NodeList"]
        time.sleep(1.1)
        said = do(room, told(node, job), HookOperation.RESTART_JOB, job, respond_slurm_exclude=exclude)
        waiting = room.job(job)
        excluded = waiting.get("ExcNodeList", "")
        room.wait_for_job(job, "RUNNING")
        found, other = room.job(job), running(room, f"--nodelist={node}")
        # Undone as Slurm allows it: while the job is held; with the job it is over.
        room.run("scontrol", "requeuehold", job)
        until(lambda: room.job(job)["JobState"] == "PENDING", "it is held")
        room.run("scontrol", "update", f"jobid={job}", "excnodelist=")
        return what_did_not(
            {
                f"done ({said.detail})": said.outcome is Outcome.DONE,
                "what it left out before, too": {"n4", node} <= set(expand_hostlist(excluded)),
                "elsewhere": found["NodeList"] not in (node, "n4") and found["Restarts"] == "1",
                "others may have it": room.job(other)["NodeList"] == node and room.node(node)[1] == "",
                "undone": room.job(job).get("ExcNodeList", "(null)") in ("(null)", ""),
            }
        )


def ends_are_told(room: SlurmRoom) -> str:
    """Without accounting: by ``scontrol show job``, as the agent's collector reads it."""
    with cleared(room):
        jobs = {"FAILED": room.submit("exit 7"), "COMPLETED": room.submit("exit 0"), "CANCELLED": running(room)}
        room.run("scancel", jobs["CANCELLED"])
        for state, job in jobs.items():
            room.wait_for_job(job, state)
        said = {}
        for state, job in jobs.items():
            facts = facts_of_slurm_job(room.run("scontrol", "-o", "show", "job", job, SLURM_TIME_FORMAT="%s"))
            said[state] = next(fact.values["state"] for fact in facts if fact.what == "state")
        ended = (room.folder / "jobcomp").read_text()
        return what_did_not(
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
            room.wait_for_words(job, "id=", 2)
            shown = room.run("squeue", "--noheader", "--format=%i", f"--jobs={job}").strip()
            named = [line.strip() for line in room.said(job).splitlines() if line.startswith("id=")]
            checks[f"{shown} is called {named}"] = named == [f"id={shown}"] * 2
    return what_did_not(checks)


def srun_leaves_nodes_out(room: SlurmRoom) -> str:
    """As ``whichrank run --restarts`` makes it: one node after the other, within one allocation."""
    srun: tuple[str, ...] = ("srun", "-l", "--ntasks=1", "printenv", "SLURMD_NODENAME")
    checks = {}
    with cleared(room):
        for bad, good in (("n1", {"n2", "n3"}), ("n2", {"n3"})):
            srun = without_node(srun, bad, (), room.folder, allocated=3).command
            job = room.submit(" ".join(srun), "--nodes=3", "--ntasks=3")
            room.wait_for_job(job, "COMPLETED", "FAILED")
            room.wait_for_words(job, "0: n", 1)
            checks[f"without {bad}: {room.said(job)}"] = room.said(job).split()[-1] in good
        nothing_to_spare = without_node(("srun", "--nodes=3", "x"), "n1", (), room.folder, allocated=3)
        checks["nothing to spare"] = not nothing_to_spare.command
        job = room.submit("srun --exclude=n1 true", "--nodes=3", "--ntasks=3")
        checks["Slurm says so, too"] = room.wait_for_job(job, "COMPLETED", "FAILED")["JobState"] == "FAILED"
    return what_did_not(checks)
