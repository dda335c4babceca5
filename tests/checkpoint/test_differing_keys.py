"""What differs by rank under one key is told, once, before storage keeps one rank's of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from whichrank.checkpoint.differing_keys import checksums, differing_keys, warning_text

RANK = """
import sys
from datetime import timedelta
import torch, torch.distributed as dist
from whichrank.checkpoint.slot_files import CheckpointName
from whichrank.checkpoint.uploads import Uploader, Upload
rank, folder = int(sys.argv[1]), sys.argv[2]
store = dist.FileStore(folder + "/store", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
uploader = Uploader(folder + "/kept", dist.group.WORLD, 0, is_first_rank=rank == 0)
for step in (1, 2):
    state = {"model": {"weight": torch.ones(3)}, "place": torch.tensor([rank, step]), f"seed-{rank}": rank}
    assert uploader.carry(Upload(name=CheckpointName(7, step), slot=0, state=state)) == ""
"""


def state(rank: int) -> dict[str, Any]:
    return {
        "model": {"weight": torch.ones(5000), "none": torch.empty(0), "flag": torch.tensor(True)},
        "random": torch.arange(6000) + (rank if rank < 3 else 0),
        "optimizer": {"groups": [{"lr": 0.1 * (rank + 1), "momenta": [torch.full((2,), 7.0)]}]},
        "step": 3,
        f"place-{rank}": rank,
    }


def test_equal_states_differ_in_no_key() -> None:
    assert differing_keys([checksums(state(0)), checksums(state(0))]) == []


def test_the_keys_are_those_of_what_differs() -> None:
    found = differing_keys([checksums(state(rank)) for rank in range(3)])
    assert found == ["random", "optimizer.groups.0.lr"]
    assert warning_text(found).startswith("random, optimizer.groups.0.lr: ranks hold different values under one key")
    assert warning_text([*"abcde"]).startswith("a, b, c and 2 more: ")


def test_a_difference_at_either_end_of_a_long_tensor_shows() -> None:
    long = torch.zeros(100_000)
    for at in (0, -1):
        other = long.clone()
        other[at] = 1.0
        assert differing_keys([checksums({"a": long}), checksums({"a": other})]) == ["a"]


def test_ranks_are_compared_before_the_first_upload_and_told_once(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(tmp_path)], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    lines = [line for each in said for line in each.splitlines() if line.startswith("whichrank:")]
    assert len(lines) == 1
    assert lines[0].startswith("whichrank: near checkpoints: place: ranks hold different values under one key")
    assert (tmp_path / "kept" / "step-2" / "whichrank.json").exists()
