"""Who is who: one table that resolves cluster, run, job, attempt, world and node from a process's surroundings.

Per field the first source that knows it wins: ``WHICHRANK_*`` > Kubernetes owner (JobSet, PyTorchJob, Kueue) > Slurm >
Ray > torchelastic. Launcher variables alone do not do: in a two-node torchrun the run id was ``none``, and in one
attempt the restart counter read 2 on one node and 3 on the other; so a rank's attempt is known by its launch
(``launch_id``), and JobOperator says which launches of the nodes are one attempt.
Pure functions of their arguments, except ``read_pod_labels``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .records import Identity

#: Where the downward API puts a pod's labels, unless WHICHRANK_POD_INFO names another folder.
DEFAULT_POD_INFO = "/etc/podinfo"
DEFAULT_CLUSTER = "local"

_JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
_JOBSET_UID = "jobset.sigs.k8s.io/jobset-uid"
_JOBSET_RESTARTS = "jobset.sigs.k8s.io/restart-attempt"
_JOBSET_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
_TRAINING_JOB_NAME = "training.kubeflow.org/job-name"
_BATCH_JOB_NAME = "batch.kubernetes.io/job-name"
_BATCH_JOB_NAME_OLD = "job-name"
_KUEUE_WORKLOAD = "kueue.x-k8s.io/workload"
#: People chain jobs of one training under the common "part of" label.
_PART_OF = "app.kubernetes.io/part-of"
#: Pods of a PyTorchJob whose labels are not mounted: ``NAME-master-0``, ``NAME-worker-12``.
_PYTORCHJOB_POD = re.compile(r"(?P<job>.+)-(?:master|worker)-[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a source may look at."""

    environ: Mapping[str, str]
    pod_labels: Mapping[str, str]
    hostname: str

    def first(self, *variables: str) -> str:
        """The value of the first of these environment variables that is set, stripped; "" where none is."""
        for variable in variables:
            value = self.environ.get(variable, "").strip()
            if value:
                return value
        return ""

    def label(self, *labels: str) -> str:
        """The first of these pod labels that is set, "" where none is."""
        for name in labels:
            value = self.pod_labels.get(name, "").strip()
            if value:
                return value
        return ""


def _whichrank(around: Surroundings) -> dict[str, str]:
    return {
        "cluster": around.first("WHICHRANK_CLUSTER_ID", "WHICHRANK_CLUSTER"),
        "run": around.first("WHICHRANK_RUN_ID"),
        "job": around.first("WHICHRANK_JOB_ID"),
        "attempt": around.first("WHICHRANK_ATTEMPT"),
        "world": around.first("WHICHRANK_WORLD"),
        "node": around.first("WHICHRANK_NODE_ID", "WHICHRANK_NODE"),
    }


def _kubernetes_owner(around: Surroundings) -> str:
    """Name of the JobSet, PyTorchJob or Job that a pod belongs to; empty for a pod that is no training job."""
    owner = around.label(_JOBSET_NAME, _TRAINING_JOB_NAME, _BATCH_JOB_NAME, _BATCH_JOB_NAME_OLD)
    if owner:
        return owner
    match = _PYTORCHJOB_POD.fullmatch(around.first("POD_NAME", "K8S_POD_NAME") or around.hostname)
    return match["job"] if match else ""


def _kubernetes(around: Surroundings) -> dict[str, str]:
    if not around.first("KUBERNETES_SERVICE_HOST"):
        return {}
    namespace = around.first("POD_NAMESPACE", "K8S_NAMESPACE_NAME")
    owner = _kubernetes_owner(around)
    # A job deleted and created again under its old name is another job.
    uid = around.label(_JOBSET_UID)
    job = "/".join(part for part in (namespace, owner) if part) if owner else ""
    if job and uid:
        job = f"{job}#{uid[:8]}"
    run = around.label(_PART_OF, _KUEUE_WORKLOAD)
    return {
        "cluster": around.first("K8S_CLUSTER_NAME"),
        "run": "/".join(part for part in (namespace, run) if part) if run else "",
        "job": job,
        "attempt": around.label(_JOBSET_RESTARTS),
        "world": around.label(_JOBSET_REPLICATED_JOB) if owner else "",
        "node": around.first("NODE_NAME", "K8S_NODE_NAME"),
    }


def slurm_job(environ: Mapping[str, str]) -> str:
    """The id of the Slurm job around this process, as ``squeue`` shows it and equal on all its nodes; "" in none.

    Of a task of an array ARRAY_TASK: SLURM_JOB_ID of its last task is the id of the whole array.
    """
    around = Surroundings(environ=environ, pod_labels={}, hostname="")
    job = around.first("SLURM_JOB_ID", "SLURM_JOBID")
    array, task = around.first("SLURM_ARRAY_JOB_ID"), around.first("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if job and array and task else job


def _slurm(around: Surroundings) -> dict[str, str]:
    job = slurm_job(around.environ)
    if not job:
        return {}
    step = around.first("SLURM_STEP_ID")
    heterogeneous = around.first("SLURM_HET_GROUP_ID", "SLURM_PACK_GROUP_ID")
    return {
        "cluster": around.first("SLURM_CLUSTER_NAME"),
        "job": job,
        # A requeued job keeps its id and counts restarts; the variable is absent before the first.
        "attempt": around.first("SLURM_RESTART_COUNT") or "0",
        "world": f"{step}+{heterogeneous}" if heterogeneous else "",
        "node": around.first("SLURMD_NODENAME"),
    }


def _ray(around: Surroundings) -> dict[str, str]:
    return {"job": around.first("RAY_JOB_ID"), "node": around.first("RAY_NODE_ID")}


def _torchelastic(around: Surroundings) -> dict[str, str]:
    run = around.first("TORCHELASTIC_RUN_ID")
    return {"job": "" if run == "none" else run}


#: In order of precedence.
SOURCES: tuple[tuple[str, Callable[[Surroundings], dict[str, str]]], ...] = (
    ("whichrank", _whichrank),
    ("kubernetes", _kubernetes),
    ("slurm", _slurm),
    ("ray", _ray),
    ("torchelastic", _torchelastic),
)

_FIELDS = ("cluster", "run", "job", "attempt", "world", "node")


def explain_identity(
    environ: Mapping[str, str], *, pod_labels: Mapping[str, str] | None = None, hostname: str = ""
) -> dict[str, tuple[str, str]]:
    """By field of Identity (without rank) its value and the source that gave it; both "" where nobody knows."""
    around = Surroundings(environ=environ, pod_labels=pod_labels or {}, hostname=hostname)
    resolved: dict[str, tuple[str, str]] = dict.fromkeys(_FIELDS, ("", ""))
    for source, look in SOURCES:
        for field, value in look(around).items():
            if value and not resolved[field][0]:
                resolved[field] = (value, source)
    # An attempt or world is meaningful only beside the job of the same source: restart 2 of a Slurm job says nothing
    # about the WHICHRANK_JOB_ID somebody chose. What whichrank's own variables say holds for any job.
    job_source = resolved["job"][1]
    for field in ("attempt", "world"):
        if resolved[field][1] not in ("whichrank", job_source):
            resolved[field] = ("", "")
    return resolved


def resolve_identity(
    environ: Mapping[str, str],
    *,
    pod_labels: Mapping[str, str] | None = None,
    hostname: str = "",
    rank: int = -1,
) -> Identity:
    """Identity of a process with this environment. A run that is not known is its job; "" is unknown.

    pod_labels: labels of the pod in Kubernetes (``read_pod_labels``). hostname: stands for the node where nothing
    better is known.
    """
    resolved = {
        field: value
        for field, (value, _) in explain_identity(environ, pod_labels=pod_labels, hostname=hostname).items()
    }
    return Identity(
        cluster=resolved["cluster"] or DEFAULT_CLUSTER,
        run=resolved["run"] or resolved["job"],
        job=resolved["job"],
        attempt=resolved["attempt"],
        world=resolved["world"],
        node=resolved["node"] or hostname,
        rank=rank,
    )


def resolve_job_name(
    environ: Mapping[str, str], *, pod_labels: Mapping[str, str] | None = None, hostname: str = ""
) -> str:
    """What people call the job; "" where nobody named it. ``WHICHRANK_JOB_NAME`` > Kubernetes owner > Slurm's name.

    Unlike the id it need not be unique: it is shown, never matched.
    """
    around = Surroundings(environ=environ, pod_labels=pod_labels or {}, hostname=hostname)
    in_kubernetes = bool(around.first("KUBERNETES_SERVICE_HOST"))
    in_slurm = bool(around.first("SLURM_JOB_ID", "SLURM_JOBID"))
    return (
        around.first("WHICHRANK_JOB_NAME")
        or (_kubernetes_owner(around) if in_kubernetes else "")
        or (around.first("SLURM_JOB_NAME") if in_slurm else "")
    )


def launch_id(
    job: str, node: str, world: str, *, launcher_pid: int, launcher_start_ticks: int, restart_count: int
) -> str:
    """Id of one start of ranks by one launcher on one node.

    Another restart is another launch, another node too.
    """
    return _digest("launch", job, node, world, launcher_pid, launcher_start_ticks, restart_count)


def _digest(*parts: object) -> str:
    return hashlib.blake2b("\0".join(str(part) for part in parts).encode("utf-8", "replace"), digest_size=8).hexdigest()


def read_pod_labels(environ: Mapping[str, str]) -> dict[str, str]:
    """Labels of the pod that the downward API mounted, lines of ``key="value"``; empty if there are none.

    environ: WHICHRANK_POD_INFO there names another folder.
    """
    folder = Path(environ.get("WHICHRANK_POD_INFO") or DEFAULT_POD_INFO)
    try:
        text = (folder / "labels").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    labels: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            labels[key.strip()] = value.strip().removeprefix('"').removesuffix('"')
    return labels
