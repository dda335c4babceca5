"""Who is who, row by row of the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from whichrank.telemetry.identity import explain_identity, read_pod_labels, resolve_identity, resolve_job_name

JOBSET = {
    "jobset.sigs.k8s.io/jobset-name": "llm",
    "jobset.sigs.k8s.io/jobset-uid": "0a1b2c3d-4e5f",
    "jobset.sigs.k8s.io/restart-attempt": "2",
    "jobset.sigs.k8s.io/replicatedjob-name": "workers",
    "batch.kubernetes.io/job-name": "llm-workers-0",
}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAMESPACE": "research", "NODE_NAME": "gke-7"}
SLURM = {"SLURM_JOB_ID": "812", "SLURM_CLUSTER_NAME": "alps", "SLURMD_NODENAME": "nid001"}
TORCHELASTIC = {"TORCHELASTIC_RUN_ID": "exp-7", "TORCHELASTIC_RESTART_COUNT": "3"}


@pytest.mark.parametrize(
    ("environ", "labels", "expected"),
    [
        pytest.param({}, {}, {"cluster": "local", "job": "", "run": "", "node": "host"}, id="nothing known"),
        pytest.param(
            {"WHICHRANK_JOB_ID": "mine", "WHICHRANK_RUN_ID": "r", "WHICHRANK_CLUSTER_ID": "c", "WHICHRANK_WORLD": "w"},
            {},
            {"cluster": "c", "job": "mine", "run": "r", "world": "w"},
            id="our own variables",
        ),
        pytest.param(
            KUBERNETES,
            JOBSET,
            {"job": "research/llm#0a1b2c3d", "attempt": "2", "world": "workers", "node": "gke-7"},
            id="JobSet",
        ),
        pytest.param(
            KUBERNETES,
            {"training.kubeflow.org/job-name": "bert", "kueue.x-k8s.io/workload": "wl-9"},
            {"job": "research/bert", "run": "research/wl-9"},
            id="PyTorchJob under Kueue",
        ),
        pytest.param(
            {**KUBERNETES, "POD_NAME": "bert-base-worker-12"}, {}, {"job": "research/bert-base"}, id="pod name alone"
        ),
        pytest.param({**KUBERNETES, "POD_NAME": "notebook-0"}, {}, {"job": ""}, id="a pod that is no training job"),
        pytest.param({}, JOBSET, {"job": ""}, id="labels outside Kubernetes mean nothing"),
        pytest.param(
            {**SLURM, "SLURM_RESTART_COUNT": "1"},
            {},
            {"cluster": "alps", "job": "812", "run": "812", "attempt": "1", "node": "nid001"},
            id="Slurm, requeued",
        ),
        pytest.param(SLURM, {}, {"attempt": "0"}, id="Slurm, before the first requeue"),
        pytest.param(
            {**SLURM, "SLURM_ARRAY_JOB_ID": "800", "SLURM_ARRAY_TASK_ID": "12"}, {}, {"job": "800_12"}, id="Slurm array"
        ),
        pytest.param({"RAY_JOB_ID": "01000000"}, {}, {"job": "01000000"}, id="Ray"),
        pytest.param(TORCHELASTIC, {}, {"job": "exp-7", "attempt": ""}, id="torchelastic"),
        pytest.param({"TORCHELASTIC_RUN_ID": "none"}, {}, {"job": ""}, id="torchelastic's none is nobody"),
        pytest.param(
            {**KUBERNETES, **SLURM, "RAY_JOB_ID": "1", **TORCHELASTIC},
            JOBSET,
            {"job": "research/llm#0a1b2c3d", "cluster": "alps"},
            id="Kubernetes before Slurm, field by field",
        ),
        pytest.param({**SLURM, "RAY_JOB_ID": "1", **TORCHELASTIC}, {}, {"job": "812"}, id="Slurm before Ray"),
        pytest.param({"RAY_JOB_ID": "1", **TORCHELASTIC}, {}, {"job": "1"}, id="Ray before torchelastic"),
        pytest.param(
            {**SLURM, "SLURM_RESTART_COUNT": "4", "WHICHRANK_JOB_ID": "mine"},
            {},
            {"job": "mine", "attempt": "", "cluster": "alps"},
            id="a restart count of another source's job says nothing of this one",
        ),
        pytest.param({"WHICHRANK_JOB_ID": "  ", **SLURM}, {}, {"job": "812"}, id="a blank variable is unset"),
    ],
)
def test_table(environ: dict[str, str], labels: dict[str, str], expected: dict[str, str]) -> None:
    identity = resolve_identity(environ, pod_labels=labels, hostname="host")
    assert {field: getattr(identity, field) for field in expected} == expected


def test_the_source_of_each_field_can_be_told() -> None:
    explained = explain_identity({**SLURM, "WHICHRANK_RUN_ID": "r"})
    assert explained["run"] == ("r", "whichrank")
    assert explained["job"] == ("812", "slurm")
    assert explained["world"] == ("", "")


def test_pod_labels_are_read_from_the_downward_api(tmp_path: Path) -> None:
    (tmp_path / "labels").write_text('jobset.sigs.k8s.io/jobset-name="llm"\napp="a=b"\nnonsense\n')
    assert read_pod_labels({"WHICHRANK_POD_INFO": str(tmp_path)}) == {
        "jobset.sigs.k8s.io/jobset-name": "llm",
        "app": "a=b",
    }
    assert read_pod_labels({"WHICHRANK_POD_INFO": str(tmp_path / "none")}) == {}


@pytest.mark.parametrize(
    ("environ", "labels", "name"),
    [
        ({}, {}, ""),
        ({**SLURM, "SLURM_JOB_NAME": "gpt-7b"}, {}, "gpt-7b"),
        ({"SLURM_JOB_NAME": "left over"}, {}, ""),
        ({**KUBERNETES, **SLURM, "SLURM_JOB_NAME": "gpt-7b"}, JOBSET, "llm"),
        ({**KUBERNETES, "POD_NAME": "bert-base-worker-12"}, {}, "bert-base"),
        ({**SLURM, "SLURM_JOB_NAME": "gpt-7b", "WHICHRANK_JOB_NAME": "mine"}, {}, "mine"),
        ({"POD_NAME": "bert-base-worker-12"}, JOBSET, ""),
    ],
)
def test_a_job_is_called_what_its_scheduler_calls_it(
    environ: dict[str, str], labels: dict[str, str], name: str
) -> None:
    assert resolve_job_name(environ, pod_labels=labels, hostname="host") == name
