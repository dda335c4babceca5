"""What command lines and environments say about the nodes of a job."""

from __future__ import annotations

import pytest

from whichrank.commands.multi_node.launcher import Rendezvous, find_rendezvous, first_node
from whichrank.commands.support.addresses import split_address


def found(command: str, **environ: str) -> Rendezvous | None:
    return find_rendezvous(command.split(), environ)


def place_of(there: Rendezvous | None) -> tuple[str, int, str, int, int] | None:
    return None if there is None else (there.host, there.port, there.id, there.places, there.place)


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc-per-node=4 train.py",
        "torchrun --standalone --nnodes=2 train.py",
        "torchrun --nnodes 1 --rdzv-endpoint=head:29400 train.py",
        "torchrun --nnodes=1:1 train.py --nnodes=2 --master-addr=10.0.0.1",
        "python train.py --nnodes 2",
        "accelerate launch train.py",
        "bash start.sh",
        "",
    ],
)
def test_one_machine_has_no_rendezvous(command: str) -> None:
    assert found(command) is None


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=head:29401 --rdzv-id=77 train.py",
            ("head", 29401, "77", 2, -1),
        ),
        (
            "/opt/bin/torchrun --nnodes 1:4 --rdzv_backend c10d --rdzv_endpoint head train.py --rdzv_endpoint no",
            ("head", 29400, "none", 4, -1),
        ),
        (
            "python -m torch.distributed.run --nnodes=2 --node_rank=1 --master_addr=10.0.0.1 --master_port=29501 t.py",
            ("10.0.0.1", 29501, "none", 2, 1),
        ),
        (
            "torchrun --nnodes=3 --rdzv-backend=c10d --rdzv-endpoint=[fd00::1]:29400 -m t",
            ("fd00::1", 29400, "none", 3, -1),
        ),
        ("torchrun --nnodes=2 --node-rank 0 --master-addr fd00::1 t.py", ("fd00::1", 29500, "none", 2, 0)),
        (
            "accelerate launch --num_machines 2 --machine_rank 1 --main_process_ip h0 --main_process_port 29600 t.py",
            ("h0", 29600, "accelerate", 2, 1),
        ),
    ],
)
def test_the_command_line_says_where_nodes_meet(command: str, expected: tuple[str, int, str, int, int]) -> None:
    assert place_of(found(command)) == expected


def test_torchruns_variables_count_where_the_command_is_silent() -> None:
    variables = {"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "head:29402", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ID": "a"}
    assert place_of(found("torchrun train.py", **variables)) == ("head", 29402, "a", 2, -1)
    assert place_of(found("bash start.sh", **variables)) == ("head", 29402, "a", 2, -1)
    assert found("torchrun --nnodes=1 train.py", **variables) is None


STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NODELIST": "gpu[08-09]",
}


def test_a_slurm_step_of_several_tasks_meets_at_its_first_node() -> None:
    assert place_of(found("python train.py", **STEP)) == ("gpu08", 29500, "4711.0", 2, 1)
    assert place_of(found("python train.py", **STEP, MASTER_ADDR="10.0.0.8", MASTER_PORT="1234")) == (
        "10.0.0.8",
        1234,
        "4711.0",
        2,
        1,
    )
    assert found("torchrun --standalone train.py", **STEP) is None, "each task is a job of its own"


def test_a_batch_script_is_one_command_however_many_nodes_it_has() -> None:
    assert found("python train.py", SLURM_JOB_ID="1", SLURM_NNODES="2", SLURM_PROCID="0") is None


def test_ranks_of_a_job_controller() -> None:
    variables = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
    assert place_of(found("python train.py", **variables)) == ("job-master-0", 23456, "env", 4, 3)
    assert found("python train.py", **variables, TORCHELASTIC_RUN_ID="none") is None, "inside a launcher"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node-01", "node-01"),
        ("node-01,node-02", "node-01"),
        ("gpu[08-11]", "gpu08"),
        ("rack[2-3]n[08,10-12],login", "rack2n08"),
        ("a[3,1]", "a3"),
        ("", ""),
    ],
)
def test_the_first_of_a_node_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


@pytest.mark.parametrize("address", ["", ":1", "host:0", "host:65536", "host:x", "[::1", "[::1]x"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        split_address(address, 1)
