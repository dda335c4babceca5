"""What a run leaves on disk, and the log of incidents after a crash."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from whichrank.commands.run_folder.incident_log import IncidentLog, read_lines
from whichrank.commands.run_folder.run_description import RunDescription
from whichrank.commands.run_folder.run_directory import (
    RunDirectory,
    Unusable,
    make_job_id,
    make_ring_directory,
    make_run_directory,
    remove_ring_directory,
)
from whichrank.telemetry.incident import canonical_line, complete_document
from whichrank.telemetry.records import Incident


def document(identity: str, revision: int) -> dict[str, Any]:
    return complete_document(
        {
            "id": identity,
            "revision": revision,
            "change": "opened",
            "state": "open",
            "severity": "page",
            "bucket": "immediate_crash",
            "kind": "rank_died",
            "times": {"onset": 1.5},
        }
    )


@pytest.mark.parametrize(
    ("script", "stem"),
    [
        ("gpt.py", "gpt"),
        ("my job.py", "my-job"),
        ("package.train", "train"),
        ("start.sh", "start"),
        ("...", "job"),
        ("", "job"),
    ],
)
def test_ids_of_jobs_are_fit_for_file_names_and_differ(script: str, stem: str) -> None:
    first, second = make_job_id(script), make_job_id(script)
    assert first != second
    assert first.rsplit("-", 1)[0] == second.rsplit("-", 1)[0] == stem


def test_revisions_are_written_once_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    log = IncidentLog(path)
    assert log.append(Incident(document=document("a", 1)))
    assert not log.append(Incident(document=document("a", 1)))
    log.close()
    log = IncidentLog(path)
    assert not log.append(Incident(document=document("a", 1)))
    assert log.append(Incident(document=document("a", 2)))
    log.close()
    assert path.read_bytes() == canonical_line(document("a", 1)) + canonical_line(document("a", 2))


@pytest.mark.parametrize("torn", [b'{"schema":1,"id"', b"\xff\xfe", b"{}"])
def test_a_torn_line_stays_and_the_next_begins_anew(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "incidents.jsonl"
    path.write_bytes(canonical_line(document("a", 1)) + torn)
    log = IncidentLog(path)
    assert not log.append(Incident(document=document("a", 1)))
    assert log.append(Incident(document=document("b", 1)))
    log.close()
    assert path.read_bytes() == canonical_line(document("a", 1)) + torn + b"\n" + canonical_line(document("b", 1))
    assert [found.id if found else None for _, _, found in read_lines(path)] == ["a", None, "b"]


def test_what_a_full_disk_refused_is_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "incidents.jsonl"
    log = IncidentLog(path)
    log.append(Incident(document=document("a", 1)))
    room, write = [30], os.write

    def write_while_there_is_room(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", write_while_there_is_room)
    for revision in (2, 3):
        with pytest.raises(OSError, match="No space left"):
            log.append(Incident(document=document("a", revision)))
    assert log.unwritten == 2
    room[0] = 1 << 20
    log.append(Incident(document=document("a", 4)))
    log.close()
    assert [found.revision if found else None for _, _, found in read_lines(path)] == [1, None, 2, 3, 4]


def test_rings_are_for_this_user_alone_and_go_without_those_of_others(tmp_path: Path) -> None:
    root = tmp_path / "rings"
    first, second = make_ring_directory(root, "a"), make_ring_directory(root, "b")
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    (first / "rank-00000.1.1.ring").touch()
    remove_ring_directory(first)
    assert not first.exists()
    assert second.exists()
    remove_ring_directory(second)
    assert not root.exists()


def test_two_jobs_of_one_name_do_not_share_rings(tmp_path: Path) -> None:
    """One may be another instance of the same job, on the same machine, or one that was killed and left its rings."""
    first, second = make_ring_directory(tmp_path, "a"), make_ring_directory(tmp_path, "a")
    assert first != second
    assert (second.stat().st_mode & 0o777, second.parent) == (0o700, first.parent)


def test_a_default_directory_is_named_by_time_and_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    directory, why = make_run_directory(None, "gpt-1")
    assert why is None
    assert directory.path.parent == tmp_path / "whichrank-out"
    assert directory.path.name.endswith("-gpt-1")
    assert list(directory.path.iterdir()) == []


def test_run_json_is_read_back_or_named_in_one_line(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with pytest.raises(Unusable, match=r"run\.json: not there"):
        directory.read_run()
    directory.write_run(RunDescription(job="a"))
    assert json.loads((tmp_path / "run.json").read_text()) == {"schema": 1, "job": "a"}
    assert directory.read_run() == RunDescription(job="a")
    (tmp_path / "run.json").write_text("[1]")
    with pytest.raises(Unusable, match="holds list"):
        directory.read_run()
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(Unusable, match="cannot be read"):
        directory.read_run()
    assert json.loads((tmp_path / "run.json").read_text() + "}") == {}
