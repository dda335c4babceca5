"""Slots: whole or nothing, whatever is cut off, written over or changed in between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whichrank.checkpoint.slot_files import (
    CheckpointName,
    SlotFile,
    SlotManifest,
    decode_manifest,
    open_folder,
    slots_in,
)


def filled(folder: Path, *, step: int = 5, rank: int = 3, slot: int = 0) -> tuple[SlotFile, SlotManifest]:
    file = SlotFile(folder, rank, slot)
    memory = file.prepare(10_000)
    memory[:10_000] = bytes(range(250)) * 40
    file.put_values(10_000, b"values")
    manifest = SlotManifest(
        rank=rank, world=4, attempt_ns=7, step=step, fingerprint="f", tensor_bytes=10_000, value_bytes=6,
        crc=file.checksum(10_006),
    )  # fmt: skip
    file.commit(manifest, with_sync=True)
    return file, manifest


def test_what_was_committed_is_there(tmp_path: Path) -> None:
    file, manifest = filled(tmp_path)
    assert file.manifest() == manifest
    assert file.is_intact(manifest)
    assert [(each.rank, each.slot) for each in slots_in(tmp_path)] == [(3, 0)]
    assert manifest.name == CheckpointName(7, 5)


def test_a_slot_that_is_written_over_holds_nothing_until_it_is_committed(tmp_path: Path) -> None:
    file, _ = filled(tmp_path)
    file.prepare(10_000)
    assert file.manifest() is None
    assert slots_in(tmp_path) == []


def test_a_byte_that_changed_is_seen(tmp_path: Path) -> None:
    file, manifest = filled(tmp_path)
    with open(file.data, "r+b") as raw:
        raw.seek(9_999)
        raw.write(b"\x00")
    assert not file.is_intact(manifest)


def test_a_file_that_is_too_short_is_no_checkpoint(tmp_path: Path) -> None:
    file, manifest = filled(tmp_path)
    os.truncate(file.data, 10_005)
    assert file.manifest() is None
    assert not file.is_intact(manifest)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"7", b'{"version": 2}', b'{"version": 1, "rank": 0}'])
def test_a_manifest_that_is_none(raw: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"manifest|version|JSON|Expecting"):
        decode_manifest(raw)
    file, _ = filled(tmp_path)
    (tmp_path / "rank-000003.slot-0.json").write_bytes(raw)
    assert file.manifest() is None


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, "run-1")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert open_folder(tmp_path, "run-1") == folder
    folder.chmod(0o750)
    with pytest.raises(PermissionError, match="alone"):
        open_folder(tmp_path, "run-1")
    (tmp_path / f"whichrank-near-{os.geteuid()}-link").symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="alone"):
        open_folder(tmp_path, "link")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 101])
def test_a_name_that_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name="):
        open_folder(tmp_path, name)
