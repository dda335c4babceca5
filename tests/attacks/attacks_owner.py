"""Attacks with other people's job ids, and with texts that look like a node's fault."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import partial
from pathlib import Path

from tests.attacks.cluster import POLICY, Cluster, rank_of, two_nodes
from tests.attacks.register import Outcome, attack
from tests.attacks.users import EVE, QUINN
from whichrank.agents.collectors.base.collector import Timestamps
from whichrank.agents.collectors.logs.kernel_events import KernelEvents
from whichrank.agents.collectors.logs.kernel_log_collector import KernelLogCollector
from whichrank.agents.collectors.logs.kernel_log_sources import KmsgSource
from whichrank.commands.respond.planning.acts import ActionPlan, HookOperation
from whichrank.commands.respond.planning.plan import plan
from whichrank.telemetry.otlp import encode_payloads
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.vocabulary import EventName, Severity

VICTIM, ATTACKER = QUINN, EVE


def _restarts(cluster: Cluster, job: str = "4711") -> int:
    acts = [act for found in cluster.plans() if isinstance(found, ActionPlan) for act in found.acts]
    return sum(act.operation is HookOperation.RESTART_JOB and act.target == job for act in acts)


@attack("A22", "a", "another user claims the SLURM_JOB_ID of a healthy job on another node, one of his ranks is killed",
        asked="no page in the job, nothing done to it", limit_s=90)  # fmt: skip
def claimed_slurm_id(folder: Path) -> Outcome:
    with two_nodes(folder) as cluster, contextlib.ExitStack() as ranks:
        rings_a, rings_b = cluster.node("node-a"), cluster.node("node-b")
        for rank in (0, 1):
            ranks.enter_context(rank_of(VICTIM, rings_a, rank, 2, SLURM_JOB_ID="4711"))
        seen = cluster.until(lambda: len(cluster.started()) == 2)
        his = [ranks.enter_context(rank_of(ATTACKER, rings_b, rank, 2, SLURM_JOB_ID="4711")) for rank in (0, 1)]
        seen &= cluster.until(lambda: len(cluster.started()) == 4)
        os.kill(his[1], signal.SIGKILL)
        told = cluster.until(lambda: any(d.severity is Severity.PAGE for d in cluster.documents))
        cluster.until(lambda: False, 2.0)
        pages = [d for d in cluster.last().values() if d.severity is Severity.PAGE]
        his_own = [d for d in pages if d.job.owner_id == str(ATTACKER) and d.job.id == f"4711@{ATTACKER}"]
        victims = [d for d in pages if d not in his_own]
        restarts = _restarts(cluster)
    return Outcome(
        held=seen and told and len(his_own) == 1 and not victims and not restarts,
        measured=f"{len(victims)} pages in the victim's job, {len(his_own)} in 4711@{ATTACKER}, {restarts} requeues",
    )


@attack("A22b", "a", "the same with WHICHRANK_JOB_ID, a rank of the victim is what dies, and both claim the id",
        asked="a page in the victim's job alone, no requeue by a name", limit_s=90)  # fmt: skip
def named_id(folder: Path) -> Outcome:
    with two_nodes(folder) as cluster, contextlib.ExitStack() as ranks:
        rings_a, rings_b = cluster.node("node-a"), cluster.node("node-b")
        for rank in (0, 1):
            ranks.enter_context(rank_of(ATTACKER, rings_b, rank, 2, WHICHRANK_JOB_ID="4711"))
        cluster.until(lambda: len(cluster.started()) == 2)
        mine = [ranks.enter_context(rank_of(VICTIM, rings_a, rank, 2, WHICHRANK_JOB_ID="4711")) for rank in (0, 1)]
        cluster.until(lambda: len(cluster.started()) == 4)
        os.kill(mine[0], signal.SIGKILL)
        told = cluster.until(lambda: any(d.severity is Severity.PAGE for d in cluster.documents))
        owners = {d.job.owner_id for d in cluster.last().values() if d.severity is Severity.PAGE}
        restarts = sum(_restarts(cluster, name) for name in ("4711", f"4711@{VICTIM}"))
    return Outcome(held=told and owners == {str(VICTIM)} and not restarts,
                   measured=f"pages of owners {sorted(map(str, owners))}, {restarts} requeues")  # fmt: skip


@attack("A23", "a", "the same job id on one node, the attacker first; Slurm says whose it is",
        asked="the owner keeps his name", limit_s=90)  # fmt: skip
def same_id_on_one_node(folder: Path) -> Outcome:
    with two_nodes(folder) as cluster, contextlib.ExitStack() as ranks:
        rings = cluster.node("node-a")
        ranks.enter_context(rank_of(ATTACKER, rings, 0, 2, SLURM_JOB_ID="4711"))
        cluster.until(lambda: len(cluster.started()) == 1)
        mine = [ranks.enter_context(rank_of(VICTIM, rings, rank, 2, SLURM_JOB_ID="4711")) for rank in (0, 1)]
        cluster.until(lambda: len(cluster.started()) == 3)
        slurm = {"scheduler": "slurm", "what": "owner", "job": "4711", "owner_uid": VICTIM}
        who = Identity(cluster="c", node="node-a")
        said = Event(name=EventName.SCHEDULER, identity=who, time_ns=time.time_ns(), attributes=slurm)
        cluster.tell(encode_payloads([said]))
        os.kill(mine[1], signal.SIGKILL)
        cluster.until(lambda: any(d.severity is Severity.PAGE for d in cluster.documents))
        names = {(d.job.id, d.job.owner_id) for d in cluster.last().values() if d.severity is Severity.PAGE}
        both = sorted(cluster.agents["node-a"].jobs)
        restarts = _restarts(cluster)
    return Outcome(
        held=names == {("4711", str(VICTIM))} and both == [f"4711@{ATTACKER}", f"4711@{VICTIM}"] and restarts > 0,
        measured=f"the owner's incident is of {sorted(names)}, the agent says {', '.join(both)}",
    )


@attack("A24", "a", "the own log says that a GPU has fallen off the bus, and the rank raises a CUDA error",
        asked="no node is taken out on a user's word", limit_s=90)  # fmt: skip
def log_says_xid(folder: Path) -> Outcome:
    with two_nodes(folder) as cluster, contextlib.ExitStack() as ranks:
        rings = cluster.node("node-a")
        pids = [ranks.enter_context(rank_of(ATTACKER, rings, rank, 2, SLURM_JOB_ID="4712")) for rank in (0, 1)]
        cluster.until(lambda: len(cluster.started()) == 2)
        who = next(event.identity for event in cluster.started() if event.attributes["pid"] == pids[1])
        line = {
            "class": "gpu_lost", "role": "initiating", "severity": "fatal", "action": "restart_without_node",
            "text": "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", "pid": pids[1], "rank": 1,
        }  # fmt: skip
        raised = {"type": "RuntimeError", "message": "CUDA error: unspecified launch failure", "communication": False,
                  "in_main": True, "pid": pids[1]}  # fmt: skip
        now_ns = time.time_ns()
        owner = {"scheduler": "slurm", "what": "owner", "job": "4712", "owner_uid": ATTACKER}
        events = [
            Event(name=EventName.SCHEDULER, identity=Identity(cluster="c", node="node-a"), time_ns=now_ns,
                  attributes=owner),
            Event(name=EventName.JOB_LOG, identity=who, time_ns=now_ns, mono_ns=time.monotonic_ns(), attributes=line),
            Event(name=EventName.RANK_EXCEPTION, identity=who, time_ns=now_ns + 10**7, mono_ns=time.monotonic_ns(),
                  attributes=raised),
        ]  # fmt: skip
        cluster.tell(encode_payloads(events))
        cluster.until(lambda: any(d.cause for d in cluster.documents))
        os.kill(pids[1], signal.SIGKILL)
        cluster.until(lambda: False, 2.0)
        causes = {d.cause.condition for d in cluster.documents if d.cause}
        by = {d.advice.by for d in cluster.documents if d.advice and d.cause}
        drains = [p for d in cluster.documents if isinstance(p := plan(d, POLICY, age_s=0.0), ActionPlan) and p.nodes]
    return Outcome(held=bool(causes) and by == {"human"} and not drains,
                   measured=f"cause {', '.join(map(str, causes))}, advice by {', '.join(map(str, by))}, "
                            f"{len(drains)} drains")  # fmt: skip


def _opened(descriptor: int, _path: str) -> int:
    return descriptor


@attack("A24b", "a", "a library is called `NVRM: Xid ... 79 ...` and the rank crashes in it; a name with a line's end",
        asked="the kernel's line is a user's word", limit_s=30)  # fmt: skip
def kernel_line_quotes_a_file(folder: Path) -> Outcome:
    xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."
    records = (
        f"eve[12]: segfault at 0 ip 00007f1 sp 00007f2 error 4 in {xid}[7f1+1000]",
        f"process 'eve/{xid}' started with executable stack",
        f"process 'eve/x\\x0a{xid}' started with executable stack",
        xid,
    )
    told: list[list[str]] = []
    for number, record in enumerate(records):
        sent = iter([f"4,{number},1000000,-;{record}\n".encode()])
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.write(writer, next(sent))
        source = partial(KmsgSource, 7200.0, "kmsg", partial(_opened, reader))
        collector = KernelLogCollector(KernelEvents(), {"kmsg": source})
        now = Timestamps(wall_ns=time.time_ns(), mono_ns=10**9)
        seen = collector.collect(now).happenings
        xids = [each.attributes for each in seen if each.attributes.get("code") == "79"]
        told.append([str(each.get("trust", "kernel")) for each in xids])
        os.close(writer)
        collector.close()
    return Outcome(held=told == [["user"], ["user"], ["user"], ["kernel"]], measured=f"Xid 79 by {told}")
