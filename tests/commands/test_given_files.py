"""Which files that an operator names are taken: settings with commands, and secrets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from whichrank.commands.settings.file_trust import who_else_decides
from whichrank.commands.settings.given_file import read_given_file
from whichrank.commands.settings.respond_options import RespondOptions
from whichrank.commands.settings.secret_file import read_secret_file
from whichrank.commands.settings.settings import AgentOptions, load_settings
from whichrank.commands.settings.settings_sources import SettingsError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes files of other users")
OTHER = 12001


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """One that everybody may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def _secret(path: Path, mode: int = 0o600, owner: int = -1) -> Path:
    path.write_text("word\n")
    path.chmod(mode)
    os.chown(path, owner, -1)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_secret_of_ones_own_is_read(tmp_path: Path, mode: int) -> None:
    assert read_secret_file(_secret(tmp_path / "s", mode)) == "word"
    (tmp_path / "link").symlink_to("s")
    assert read_secret_file(tmp_path / "link") == "word"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_secret_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ValueError, match="chmod 600") as caught:
        read_secret_file(_secret(tmp_path / "s", mode))
    assert "word" not in str(caught.value)


def test_a_secret_in_a_folder_that_keeps_others_out_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "private"
    (folder / "below").mkdir(parents=True)
    path = _secret(folder / "below" / "s", 0o644)
    folder.chmod(0o700)
    assert read_secret_file(path) == "word"
    (tmp_path / "link").symlink_to(path)
    assert read_secret_file(tmp_path / "link") == "word"
    (tmp_path / "another-name").hardlink_to(path)
    with pytest.raises(ValueError, match="chmod 600"):
        read_secret_file(path)


@needs_root
def test_a_secret_of_another_user_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"user {OTHER}'s"):
        read_secret_file(_secret(tmp_path / "s", owner=OTHER))


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"no regular file|Is a directory"):
            read_given_file(path)
    (tmp_path / "large").write_bytes(bytes(2049))
    with pytest.raises(OSError, match="larger than 2 kB"):
        read_given_file(tmp_path / "large", 2048)


def _volume(folder: Path) -> Path:
    (folder / "..2026").mkdir(parents=True)
    _secret(folder / "..2026" / "s", 0o644)
    (folder / "..data").symlink_to("..2026")
    (folder / "s").symlink_to("..data/s")
    return folder / "s"


@needs_root
def test_a_secret_is_taken_from_where_a_kubelet_has_put_it_and_no_user(tmp_path: Path) -> None:
    path = _volume(tmp_path / "volume")
    path.parent.chmod(0o1777)
    assert read_secret_file(path) == "word"
    path.parent.chmod(0o777)
    with pytest.raises(ValueError, match="chmod 600"):
        read_secret_file(path)
    path.parent.chmod(0o755)
    os.lchown(path.parent / "..data", OTHER, OTHER)
    with pytest.raises(ValueError, match="chmod 600"):
        read_secret_file(path)


def test_a_credential_of_systemd_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _secret(tmp_path / "s", 0o440)
    tmp_path.chmod(0o555)
    with pytest.raises(ValueError, match="chmod 600"):
        read_secret_file(path)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_secret_file(path) == "word"


@needs_root
def test_commands_come_from_where_root_or_the_caller_alone_may_write(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('respond_slurm_requeue = ["id"]\n')
    assert who_else_decides(own, own.stat()) is None
    his = tmp_path / "his"
    his.mkdir()
    (his / "f.toml").write_text(own.read_text())
    os.chown(his, OTHER, OTHER)
    (tmp_path / "link.toml").symlink_to(his / "f.toml")
    (tmp_path / "folder").symlink_to(his)
    for path in (his / "f.toml", tmp_path / "link.toml", tmp_path / "folder" / "f.toml", his / ".." / "own.toml"):
        assert f"the folder {his} is user {OTHER}'s" in str(who_else_decides(path, path.stat()))
        with pytest.raises(SettingsError, match="no commands are taken"):
            load_settings(RespondOptions, {"respond_from": tmp_path}, path)
    os.chown(his, 0, 0)
    his.chmod(0o777)
    assert "everybody may write the folder" in str(who_else_decides(his / "f.toml", own.stat()))
    his.chmod(0o1777)
    assert who_else_decides(his / "f.toml", own.stat()) is None


@needs_root
def test_a_named_file_of_another_user_holds_for_what_has_no_commands(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text('kafka = "a:1"\n')
    os.chown(path, OTHER, OTHER)
    assert load_settings(AgentOptions, {}, path)[0].kafka == "a:1"
