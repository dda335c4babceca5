"""What a job is called, whatever it is started by; and that a shell starts what the name says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from whichrank.commands.run.script_name import name_script

TO_A_FILE = ["sh", "-c", 'exec "$@" >"$0" 2>&1', "out.log"]
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node=4"]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["torchrun", "--nproc-per-node=4", "train/gpt.py", "--lr", "1"], "gpt.py"),
        (["torchrun", "--nproc-per-node", "4", "-m", "package.train", "--config", "big.py"], "package.train"),
        (["torchrun", "--no-python", "./train.sh"], "train.sh"),
        (["torchrun", "--no-python", "bash", "-c", "python gpt.py"], "gpt.py"),
        (["torchrun", "--some-new-flag", "gpt.py"], "gpt.py"),
        (["python", "-m", "torch.distributed.run", "my job.py"], "my job.py"),
        (["python", "-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "package"], "package"),
        (["python", "/opt/bin/torchrun", "--nproc-per-node=2", "gpt.py"], "gpt.py"),
        (["python3.11", "-u", "-X", "dev", "gpt.py", "other.py"], "gpt.py"),
        (["python", "-m", "package.train"], "package.train"),
        (["python", "-m", "package.train", "--config", "big.py"], "package.train"),
        (["python", "-c", "import x"], "python"),
        (["python"], "python"),
        (["accelerate", "launch", "--num_processes", "2", "gpt.py"], "gpt.py"),
        (["accelerate", "launch", "--multi_gpu", "-m", "package.train"], "package.train"),
        (["python", "-m", "accelerate.commands.launch", "--cpu", "gpt.py"], "gpt.py"),
        (["accelerate", "test"], "accelerate"),
        (["deepspeed", "--num_gpus", "2", "gpt.py", "--deepspeed_config", "c.json"], "gpt.py"),
        (["srun", "--ntasks-per-node=1", *TORCHRUN, "gpt.py"], "gpt.py"),
        (["env", "-u", "X", "KEY=hunter2", "numactl", "--cpunodebind=0", "python", "-m", "package"], "package"),
        (["mpirun", "-n", "4", "./gpt.py"], "gpt.py"),
        (["/usr/bin/sleep", "3"], "sleep"),
        (["./train"], "train"),
        (["..."], "..."),
        ([], ""),
    ],
)
def test_jobs_are_named_after_their_script(command: list[str], name: str) -> None:
    assert name_script(command) == name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ([*TO_A_FILE, *TORCHRUN, "gpt.py", "--plan", "plan.json"], "gpt.py"),
        ([*TO_A_FILE, "python", "-m", "package.train"], "package.train"),
        (["sh", "-c", 'exec "$0" "$@"', "torchrun", "gpt.py"], "gpt.py"),
        (["bash", "-c", 'torchrun -m "${1}"', "sh", "package"], "package"),
        (["bash", "-lc", "set -e; cd /job && export A=1 && torchrun --nproc 4 train/x.py | tee log.py"], "x.py"),
        (["bash", "-c", "cd /job\nsource env.sh\ntorchrun \\\n  --nproc-per-node=4 \\\n  gpt.py > log 2>&1"], "gpt.py"),
        (["bash", "-euo", "pipefail", "-c", "echo begin; ./train --big; sleep 1"], "train"),
        (["bash", "start.sh"], "start.sh"),
        (["bash", "-x", "jobs/start.sh", "--config", "big.py"], "start.sh"),
        (["bash", "wrapper.sh", *TORCHRUN, "gpt.py"], "gpt.py"),
        (["./wrapper.sh", *TORCHRUN, "-m", "package.train"], "package.train"),
        (["./start.sh", "now"], "start.sh"),
        (["sh", "-c", '"$@"'], "sh"),
        (["sh"], "sh"),
    ],
)
def test_a_shell_or_wrapper_is_looked_through(command: list[str], name: str) -> None:
    assert name_script(command) == name


@pytest.mark.parametrize("text", ['exec "$@"', '"$@" > "$0"', 'A=1 exec "$0" "$@"', 'cd . && "$1" "$2"'])
def test_what_the_shell_runs_is_what_is_named(text: str, tmp_path: Path) -> None:
    """The shell itself is asked: it starts the script that the name says."""
    script = tmp_path / "job.py"
    script.write_text("open('ran', 'w').close()")
    first = [sys.executable] if '"$0" "$@"' in text else ["out.log", sys.executable]
    command = ["sh", "-c", text, *first, str(script)]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert (tmp_path / "ran").exists()
    assert name_script(command) == "job.py"
