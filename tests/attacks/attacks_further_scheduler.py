"""What a user can make Slurm's answers, the kernel's log and process names say: none of it may speak for others."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from tests.attacks.register import Outcome, attack
from tests.attacks.users import EVE, QUINN, fork_as, living_as, run_as
from whichrank.agents.collectors.base.collector import Timestamps
from whichrank.agents.collectors.logs.kernel_events import KernelEvents
from whichrank.agents.collectors.logs.kernel_log_collector import KernelLogCollector
from whichrank.agents.collectors.logs.kernel_log_sources import KmsgSource
from whichrank.agents.collectors.surroundings.rank_environments import RankEnvironments
from whichrank.agents.collectors.surroundings.scheduler_collector import SchedulerCollector
from whichrank.agents.processes.job_id_proof import who_says_id
from whichrank.diagnosis.scheduler_facts import facts_of_slurm_job
from whichrank.telemetry.trust import IdBy

_XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."


def _now() -> Timestamps:
    return Timestamps(wall_ns=time.time_ns(), mono_ns=time.monotonic_ns())


def _opened(descriptor: int, _path: str) -> int:
    return descriptor


@contextlib.contextmanager
def _ranks(uid: int, environments: Sequence[Mapping[str, str]]) -> Iterator[list[int]]:
    """Programs of a user's with these variables."""
    pids: list[int] = []
    for environ in environments:
        pid = os.fork()
        if pid == 0:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.execve("/bin/sleep", ["sleep", "300"], dict(environ))
        pids.append(pid)
    time.sleep(0.3)
    try:
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


@attack(
    "A101",
    "a",
    "the kernel quotes what a user chose: a mount option, an overlay's folder, a control group",
    asked="a user's word, not the kernel's",
    limit_s=30,
)
def kernel_quotes_names(folder: Path) -> Outcome:
    records = (
        f"tmpfs: Unknown parameter '{_XID}'",
        f"overlayfs: failed to resolve '{_XID}': -2",
        f"cgroup: fork rejected by pids controller in /user.slice/user-12001.slice/{_XID}",
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/u/{_XID},task=a,pid=9",
        f"loop0: detected capacity change; backing file /home/eve/{_XID}",
        f"EXT4-fs (loop0): mounted filesystem without journal. Opts: {_XID}",
        f"eve[77]: memfd_create() called without MFD_EXEC; {_XID}",
        _XID,
    )
    trusts = []
    for number, record in enumerate(records):
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.write(writer, f"4,{number},1000000,-;{record}\n".encode())
        collector = KernelLogCollector(
            KernelEvents(), {"kmsg": partial(KmsgSource, 7200.0, "kmsg", partial(_opened, reader))}
        )
        seen = collector.collect(Timestamps(wall_ns=time.time_ns(), mono_ns=10**9)).happenings
        trusts.append(
            {str(e.attributes.get("trust", "kernel")) for e in seen if "fallen" in str(e.attributes.get("text"))}
        )
        os.close(writer)
        collector.close()
    forged = sum("kernel" in each for each in trusts[:-1])
    return Outcome(
        held=not forged and trusts[-1] == {"kernel"},
        measured=f"{forged} of {len(records) - 1} told as the kernel's own; the true one by {sorted(trusts[-1])}",
    )


@attack(
    "A102",
    "a",
    "SLURMD_NODENAME of the own rank is another node, which is drained and in maintenance",
    asked="this node is told to be neither",
    limit_s=30,
)
def name_of_another_node(folder: Path) -> Outcome:
    own = os.uname().nodename

    def scontrol(words: Sequence[str]) -> str:
        if words[2:] == ["show", "res"]:
            return (
                "ReservationName=m StartTime=100 EndTime=4000000000 Nodes=other7 Flags=MAINT,SPEC_NODES State=ACTIVE\n"
            )
        if words[2:4] == ["show", "node"]:
            name = words[4]
            state = "IDLE+DRAIN" if name == "other7" else "IDLE"
            return f"NodeName={name} Arch=x86_64 NodeAddr={name} NodeHostName={name} State={state} Reason=x [root@1]\n"
        return f"JobId={words[4]} JobName=x UserId=eve({EVE}) GroupId=eve(1) JobState=RUNNING Requeue=1\n"

    told: list[object] = []
    for name in ("other7", own):
        collector = SchedulerCollector(run=scontrol)
        with _ranks(EVE, [{"RANK": "0", "SLURM_JOB_ID": "9001", "SLURMD_NODENAME": name}]):
            for _ in range(2):
                told += [
                    (name, e.attributes["what"])
                    for e in collector.collect(_now()).happenings
                    if e.attributes["what"] in ("maintenance", "node_state")
                ]
    return Outcome(held=not told, measured=f"told of this node: {told}")


@attack(
    "A103",
    "a",
    "a user's 40 processes claim low Slurm ids; another user's true job has a higher one",
    asked="Slurm is asked about the other's, too",
    limit_s=30,
)
def many_claimed_ids(folder: Path) -> Outcome:
    asked: list[str] = []

    def scontrol(words: Sequence[str]) -> str:
        if words[2:4] == ["show", "job"]:
            asked.append(words[4])
            if words[4] == "4711":
                return f"JobId=4711 JobName=x UserId=quinn({QUINN}) GroupId=q(1) JobState=RUNNING\n"
            raise subprocess.CalledProcessError(1, list(words))
        return ""

    collector = SchedulerCollector(run=scontrol)
    claims = [{"RANK": str(n), "SLURM_JOB_ID": f"{1000 + n}"} for n in range(40)]
    with _ranks(EVE, claims), _ranks(QUINN, [{"RANK": "0", "SLURM_JOB_ID": "4711"}]):
        collector.collect(_now())
        collector.collect(_now())
    return Outcome(
        held="4711" in asked and len(set(asked)) <= 64,
        measured=f"{len(set(asked))} ids asked about, the other's among them: {'4711' in asked}",
    )


@attack(
    "A104",
    "a",
    "a Slurm job is named `x ArrayJobId=4711 ArrayTaskId=1`, and others that hold keys of scontrol",
    asked="Slurm's answer makes its owner the owner of no other job",
    limit_s=30,
)
def name_holds_keys(folder: Path) -> Outcome:
    rest = f"UserId=eve({EVE}) GroupId=eve({EVE}) MCS_label=N/A JobState=RUNNING Requeue=1 Restarts=0"
    lines = (
        f"JobId=9001 JobName=x ArrayJobId=4711 ArrayTaskId=1 {rest}",
        f"JobId=9001 JobName=x UserId=quinn({QUINN}) {rest}",
        f"JobId=9001 JobName=x JobId=4711 {rest}",
        f"JobId=9001 JobName=x {rest} Comment=z ArrayJobId=4711 ArrayTaskId=1 UserId=quinn({QUINN})",
    )
    owners = [{(f.job, f.values["owner_uid"]) for f in facts_of_slurm_job(line) if f.what == "owner"} for line in lines]
    wrong = [each for each in owners if not each <= {("9001", EVE)}]
    true = {
        (f.job, f.values["owner_uid"])
        for f in facts_of_slurm_job(f"JobId=4712 ArrayJobId=4711 ArrayTaskId=1 JobName=true one {rest}")
        if f.what == "owner"
    }
    right = true == {("4712", EVE), ("4711_1", EVE)}
    return Outcome(held=not wrong and right, measured=f"wrong owners: {wrong}; of a true array: {right}")


def _named_as_step(folder: Path, before: Sequence[str], uid: int) -> tuple[subprocess.Popen[bytes], int]:
    """A process called slurmstepd, titled as one of job 4711, with a child; and the child's pid."""
    program = folder / "slurmstepd"
    program.unlink(missing_ok=True)  # an earlier one may still run
    shutil.copy("/bin/sh", program)
    program.chmod(0o755)
    title = "slurmstepd: [4711.0]"
    bash = shutil.which("bash") or "bash"
    script = f'exec -a "{title}" {program} -c "sleep 300 & echo \\$!; wait"'
    done = subprocess.Popen([*before, bash, "-c", script], stdout=subprocess.PIPE, user=uid, group=uid)
    assert done.stdout is not None
    done.stdout.readline()
    time.sleep(0.2)
    return done, done.pid


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/{each}/task/{each}/children").read_text().split())
    return found


def _end(pid: int) -> None:
    for each in reversed(_descendants(pid)):
        with contextlib.suppress(ProcessLookupError):  # its child's end was its own
            os.kill(each, 9)


@attack(
    "A105",
    "a",
    "root of a container (own pid namespace, no user namespace) calls a process `slurmstepd: [4711.0]`",
    asked="the id is claimed, not the kernel's",
    limit_s=30,
)
def step_daemon_of_a_container(folder: Path) -> Outcome:
    boxed, _ = _named_as_step(folder, ["unshare", "--pid", "--fork", "--mount-proc"], 0)
    try:
        rank = _descendants(boxed.pid)[-1]
        said = who_says_id({"SLURM_JOB_ID": "4711"}, rank)
        depth = len(_descendants(boxed.pid))
    finally:
        _end(boxed.pid)
    own, _ = _named_as_step(folder, [], 0)  # a true one, as far as the kernel can tell
    try:
        true = who_says_id({"SLURM_JOB_ID": "4711"}, _descendants(own.pid)[-1])
    finally:
        _end(own.pid)
    return Outcome(
        held=said is IdBy.CLAIMED and true is IdBy.KERNEL and depth >= 3,
        measured=f"in the container: {said.value}, root's own on the node: {true.value}",
    )


@attack(
    "A106",
    "a",
    "a setuid-root program, called slurmstepd by a user's link, is an ancestor of his rank",
    asked="the id is claimed",
    limit_s=30,
)
def setuid_step_daemon(folder: Path) -> Outcome:
    program = folder / "tool"
    shutil.copy("/bin/sleep", program)
    program.chmod(0o4755)
    place = folder / "eve"
    place.mkdir()
    os.chown(place, EVE, EVE)
    link = place / "slurmstepd"
    run_as(EVE, lambda: link.symlink_to(program))

    def act() -> None:
        if os.fork() == 0:
            os.execv("/bin/sleep", ["sleep", "20"])
        os.execv(str(link), ["slurmstepd: [4711.0]", "20"])

    pid = fork_as(EVE, act)
    time.sleep(0.5)
    children = _descendants(pid)
    said = who_says_id({"SLURM_JOB_ID": "4711"}, children[-1])
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    uids = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("Uid")).split()[1:]
    for each in children:
        os.kill(each, 9)
    return Outcome(
        held=said is IdBy.CLAIMED and name == "slurmstepd" and len(children) == 2 and uids[1] == "0",
        measured=f"{name} with uids {'/'.join(uids)}: {said.value}",
    )


@attack(
    "A107",
    "a",
    "below a control group that is handed to him a user makes slurm/uid_.../job_4711 and goes into it",
    asked="the id is claimed",
    limit_s=30,
)
def control_group_of_a_user(folder: Path) -> Outcome:
    place = Path("/sys/fs/cgroup/pids")
    if not place.is_dir():
        place = Path("/sys/fs/cgroup")
    handed = place / f"attack-{os.getpid()}"
    handed.mkdir()
    below = handed / "slurm" / f"uid_{EVE}" / "job_4711"
    try:
        for each in (handed, handed / "cgroup.procs"):
            os.chown(each, EVE, EVE)

        def act() -> None:
            below.mkdir(parents=True)

        run_as(EVE, act)
        with living_as(EVE, lambda: None) as pid:
            (below / "cgroup.procs").write_text(str(pid))  # he may himself where all of his session is below
            is_in = "job_4711" in Path(f"/proc/{pid}/cgroup").read_text()
            said = who_says_id({"SLURM_JOB_ID": "4711"}, pid)
    finally:
        for each in (below, below.parent, below.parent.parent, handed):
            for _ in range(20):
                with contextlib.suppress(OSError):
                    each.rmdir()
                    break
                time.sleep(0.05)
    return Outcome(held=said is IdBy.CLAIMED and is_in, measured=f"in the group: {is_in}, the id is {said.value}")


@attack(
    "A108",
    "a",
    "1,100 processes of a user have RANK in their environment; another user's rank is younger",
    asked="the other's rank is found",
    limit_s=60,
)
def many_environments(folder: Path) -> Outcome:
    script = "i=0; while [ $i -lt 1100 ]; do RANK=$i sleep 100 & i=$((i+1)); done; echo started; wait"
    his = subprocess.Popen(["/bin/sh", "-c", script], user=EVE, group=EVE, stdout=subprocess.PIPE, env={})
    assert his.stdout is not None
    his.stdout.readline()
    with _ranks(QUINN, [{"RANK": "0", "SLURM_JOB_ID": "2"}]) as theirs:
        began = time.monotonic()
        ranks = RankEnvironments(Path("/proc"))
        ranks.look()
        found = ranks.look()
        took = time.monotonic() - began
        seen = any(each.pid == theirs[0] for each in found)
    for pid in _descendants(his.pid)[::-1]:
        os.kill(pid, 9)
    return Outcome(
        held=seen and len(found) <= 2048, measured=f"{len(found)} found, his among them: {seen}, {took:.1f} s"
    )
