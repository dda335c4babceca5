"""A user whose other job is on the node loses nothing, whatever ends there."""

from __future__ import annotations

from pathlib import Path

import pytest

from whichrank.commands.check.acts.other_jobs import OtherJob, refuse_beside_other_jobs

UID, OTHER = 1234, 4321
V2 = "0::/system.slice/slurmstepd.scope/job_{}/step_0/user/task_0\n"
V1 = "7:memory:/slurm/uid_1234/job_{}/step_0\n1:name=systemd:/\n"
POD = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1a2b3c4d_5e6f_7a8b_9c0d_1e2f3a4b5c6d.slice/x\n"
LOGIN = "0::/user.slice/user-1234.slice/session-3.scope\n"


def process(proc: Path, pid: int, uid: int, cgroup: str) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "status").write_text(f"Name:\tpython\nState:\tS (sleeping)\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    (folder / "cgroup").write_text(cgroup)


@pytest.mark.parametrize("form", [V1, V2])
def test_another_job_of_the_user_forbids_it_and_that_which_ends_does_not(tmp_path: Path, form: str) -> None:
    process(tmp_path, 10, UID, LOGIN)
    process(tmp_path, 20, UID, form.format(77))
    process(tmp_path, 30, OTHER, form.format(78))
    refuse_beside_other_jobs(UID, proc=tmp_path, environ={"SLURM_JOB_ID": "77"})
    with pytest.raises(OtherJob, match=r"user 1234 has job 77 here \(process 20\): nothing of his is reclaimed"):
        refuse_beside_other_jobs(UID, proc=tmp_path, environ={"SLURM_JOB_ID": "79"})
    with pytest.raises(OtherJob):
        refuse_beside_other_jobs(UID, proc=tmp_path, environ={})


def test_what_a_pod_holds_is_not_left_over(tmp_path: Path) -> None:
    process(tmp_path, 20, UID, POD)
    with pytest.raises(OtherJob, match="in a container"):
        refuse_beside_other_jobs(UID, proc=tmp_path, environ={})


def test_a_user_who_has_nothing_but_what_was_left_is_no_obstacle(tmp_path: Path) -> None:
    process(tmp_path, 10, UID, LOGIN)
    (tmp_path / "self").mkdir()
    refuse_beside_other_jobs(UID, proc=tmp_path, environ={})
