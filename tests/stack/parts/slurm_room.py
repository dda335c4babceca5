"""A real Slurm on this machine: munged with its own key, slurmctld, and a slurmd for each of several nodes of one host.

All of it lives in one folder of its own and on ports of the loopback; it is ended by pid and leaves nothing behind.
Times are short (``KillWait``, ``SlurmdTimeout``, credentials), so that what takes minutes on a cluster takes seconds
here. There is no accounting: slurmdbd wants a database, so end states come from ``scontrol show job`` and
``jobcomp/filetxt``, not from ``sacct``.
"""

from __future__ import annotations

import contextlib
import getpass
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

from tests.ports import free_ports
from whichrank.diagnosis.scheduler_facts import parse_pairs

PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sbatch", "srun", "squeue", "scancel", "sinfo")
READY_S, END_S = 60.0, 20.0
CPUS = 8
#: In the environment of a node's daemons.
_NODE = "SLURM_ROOM_NODE"
_numbers = itertools.count(1)

_CONFIGURATION = """
ClusterName=room
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp
JobAcctGatherType=jobacct_gather/none
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmdLogFile={folder}/slurmd-%n.log
PlugStackConfig={folder}/plugstack.conf
SlurmctldTimeout=10
MessageTimeout=2
SlurmdTimeout=5
KillWait={kill_wait_s}
OverTimeLimit=0
MinJobAge=900
ReturnToService=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
RebootProgram={folder}/reboot
{further}
{nodes}
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_s}
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def what_is_missing() -> str:
    """Why there can be no Slurm here; empty: there can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"no Slurm, {', '.join(missing)} not found: apt-get install slurmctld slurmd slurm-client munge"
    return "" if os.geteuid() == 0 else "no Slurm for a user: slurmd runs jobs as root"


class SlurmRoom:
    """As a context: Slurm is ready within it, and gone after it.

    nodes: n1, n2, ... further: lines of slurm.conf. grace_s: between the SIGTERM of a preemption and its end.
    kill_wait_s: between SIGTERM and SIGKILL.
    """

    def __init__(self, nodes: int = 4, *, further: str = "", grace_s: int = 30, kill_wait_s: int = 5) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-room-"))
        self.nodes = tuple(f"n{number}" for number in range(1, nodes + 1))
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": _path()}
        for name in [name for name in self.environment if name.startswith("SLURM") and name != "SLURM_CONF"]:
            del self.environment[name]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._write(further, grace_s=grace_s, kill_wait_s=kill_wait_s)

    def _write(self, further: str, **times_s: int) -> None:
        self.folder.chmod(0o711)  # munge wants its socket to be in everybody's reach
        (self.folder / "munge").mkdir()
        (self.folder / "munge").chmod(0o711)
        key = self.folder / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        for name in ("state", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
        (self.folder / "plugstack.conf").touch()
        self.script("reboot", f"date >> {self.folder}/reboots")
        host = socket.gethostname().partition(".")[0]
        port, *ports = free_ports(1 + len(self.nodes))
        lines = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={at} CPUs={CPUS} RealMemory=1000"
            for node, at in zip(self.nodes, ports, strict=True)
        )
        text = _CONFIGURATION.format(
            host=host, port=port, user=getpass.getuser(), folder=self.folder, nodes=lines, **times_s,
            further=further.replace("{folder}", str(self.folder)),
        )  # fmt: skip
        (self.folder / "slurm.conf").write_text(text)

    # --- daemons ------------------------------------------------------------------------------------------------------
    def __enter__(self) -> SlurmRoom:
        try:
            munge = self.folder / "munge"
            self._start(
                "munged", "--foreground", f"--key-file={munge}/key", f"--socket={munge}/socket", "--num-threads=10",
                f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed",
            )  # fmt: skip
            until(lambda: (munge / "socket").is_socket(), "munged listens")
            self._start("slurmctld", "-D", "-c")
            for node in self.nodes:
                self.start_node(node)
            until(lambda: all(self.node(node)[0] == "IDLE" for node in self.nodes), "all nodes are idle", READY_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, name: str, *words: str, node: str = "") -> None:
        with (self.folder / f"{node or name}.out").open("ab") as out:
            self._daemons[node or name] = subprocess.Popen(
                [name, *words], env=self.environment | {_NODE: node}, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def start_node(self, node: str) -> None:
        """Starts the slurmd of a node."""
        self._start("slurmd", "-D", "-N", node, node=node)

    def kill_node(self, node: str) -> None:
        """The node is lost: its slurmd, and the processes of its jobs."""
        self._daemons[node].kill()
        self._daemons[node].wait()
        _kill(self._processes(node))

    def close(self) -> None:
        """Ends all of it by pid, and removes the folder."""
        for name in ["slurmctld", *self.nodes, "munged"]:
            daemon = self._daemons.get(name)
            if daemon is None:
                continue
            daemon.terminate()
            try:
                daemon.wait(END_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
            if name == self.nodes[-1]:
                _kill(self._processes())
        self._daemons.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _processes(self, node: str = "") -> Iterator[int]:
        """Pids of what has this room around it: step daemons, jobs, and what tests ask. node: only what is of it."""
        here, of_node = f"SLURM_CONF={self.environment['SLURM_CONF']}", {f"{_NODE}={node}", f"SLURMD_NODENAME={node}"}
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                words = set(entry.read_text(errors="replace").split("\0"))
                if here in words and (not node or words & of_node):
                    yield int(entry.parent.name)

    # --- what one asks and says ---------------------------------------------------------------------------------------
    def run(self, *words: str, check: bool = True, **environment: str) -> str:
        """Runs a command of Slurm's, and returns what it said. Raises subprocess.CalledProcessError, TimeoutExpired."""
        done = subprocess.run(
            words, env={**self.environment, **environment}, capture_output=True, text=True, timeout=60, check=False
        )
        if check and done.returncode != 0:
            raise subprocess.CalledProcessError(done.returncode, words, done.stdout, done.stderr)
        return done.stdout if check else done.stdout + done.stderr

    def script(self, name: str, text: str) -> Path:
        """A shell script in the room's folder."""
        path = self.folder / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
        return path

    def submit(self, text: str, *options: str) -> str:
        """Hands in a batch job; returns its id. Its output goes to ``JOB.out`` in the room's folder."""
        script = self.script(f"job-{next(_numbers)}", text)
        out = f"--output={self.folder}/%j.out"
        return self.run(
            "sbatch", "--parsable", "--open-mode=append", out, f"--chdir={self.folder}", *options, str(script)
        ).strip()

    def said(self, job: str) -> str:
        """What a job has put out so far."""
        path = self.folder / f"{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for_words(self, job: str, words: str, times: int) -> None:
        """Until the job has put them out so often."""
        until(lambda: self.said(job).count(words) >= times, f"{times} times {words!r}: {self.said(job)}", 2 * READY_S)

    def node(self, name: str) -> tuple[str, str]:
        """State and reason."""
        try:
            pairs = parse_pairs(self.run("scontrol", "-o", "show", "node", name))
        except subprocess.CalledProcessError:
            return "", ""
        return pairs.get("State", ""), pairs.get("Reason", "")

    def job(self, job: str) -> Mapping[str, str]:
        """What ``scontrol show job`` says of a job, or of a task of an array."""
        return parse_pairs(self.run("scontrol", "-o", "show", "job", job))

    def wait_for_job(self, job: str, *states: str, seconds: float = READY_S) -> Mapping[str, str]:
        """Until the job is in one of these states."""
        until(lambda: self.job(job).get("JobState") in states, f"job {job} is {states}: {self.job(job)}", seconds)
        return self.job(job)

    def wait_for_node(self, node: str, holds: Callable[[str], bool], seconds: float = READY_S) -> str:
        """Until the node's state is as asked; returns it."""
        until(lambda: holds(self.node(node)[0]), f"node {node}: {self.node(node)}", seconds)
        return self.node(node)[0]


def until(holds: Callable[[], bool], what: str, seconds: float = READY_S) -> None:
    """Waits for it. Raises TimeoutError."""
    ends = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.1)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _path() -> str:
    """Daemons lie where a user's PATH does not always lead."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
