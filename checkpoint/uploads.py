"""Carries a checkpoint from its slots to the storage that stays: ``torch.distributed.checkpoint``, in a thread of the
writer process, so that saves near the job go on.

A checkpoint there is a folder ``step-N``; it is whole once torch has written its metadata, which comes last, and our
own word of which attempt it is from.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import save

from .differing_keys import compare_ranks
from .slot_files import CheckpointName

#: Ours beside torch's files; written after them.
WORD_FILE = "whichrank.json"
_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """state: of this rank, on memory that stays as it is until it is told that the upload is over."""

    name: CheckpointName
    slot: int
    state: dict[str, Any]


def folder_of(persistent: str, name: CheckpointName) -> Path:
    """Where a checkpoint is carried to."""
    return Path(persistent) / f"step-{name.step}"


def whole_in(persistent: str | None) -> list[CheckpointName]:
    """Checkpoints in storage that are whole, the oldest first. Raises OSError where it cannot be read."""
    found = []
    names = os.listdir(persistent) if persistent is not None and os.path.isdir(persistent) else []
    for name in names:
        step = _STEP.fullmatch(name)
        if step is None or persistent is None or not (Path(persistent) / name / ".metadata").is_file():
            continue
        try:
            said = json.loads((Path(persistent) / name / WORD_FILE).read_bytes())
            found.append(CheckpointName(int(said["attempt_ns"]), int(step[1])))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return sorted(found)


class Uploader:
    """Of one writer process. is_first_rank: clears up, and writes our word."""

    def __init__(self, persistent: str, group: dist.ProcessGroup | None, keep: int, *, is_first_rank: bool) -> None:
        self._persistent, self._group, self._keep, self._is_first = persistent, group, keep, is_first_rank
        self._has_compared = False

    def carry(self, upload: Upload) -> str:
        """Returns "" where it is whole in storage, on all ranks, else why not. Raises nothing."""
        folder = folder_of(self._persistent, upload.name)
        try:
            if self._is_first:
                (folder / WORD_FILE).unlink(missing_ok=True)
                (folder / ".metadata").unlink(missing_ok=True)
            if self._group is not None and not self._has_compared:
                self._has_compared = True
                differing = compare_ranks(upload.state, self._group)
                if differing:
                    print(f"whichrank: near checkpoints: {differing}", file=sys.stderr)
            save(upload.state, checkpoint_id=folder, process_group=self._group, no_dist=self._group is None)
            if self._is_first:
                word = folder / f"{WORD_FILE}.new"
                word.write_text(json.dumps({"attempt_ns": upload.name.attempt_ns, "written_s": time.time()}))
                word.replace(folder / WORD_FILE)
                self._clear_up()
        except Exception as error:  # edge: storage, the other ranks
            return f"{folder}: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
        return ""

    def _clear_up(self) -> None:
        """The oldest ones go, where only so many are to be kept."""
        if self._keep > 0:
            for name in whole_in(self._persistent)[: -self._keep]:
                folder = folder_of(self._persistent, name)
                (folder / WORD_FILE).unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)
