"""The secret that instances of one job share where none was set: the user's own, private, the same for all who ask."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from whichrank.commands.multi_node.peer_secret import NoSecret, find_secret


def test_what_was_given_holds() -> None:
    assert find_secret("given", {}) == "given"


def test_nodes_that_share_a_home_have_one_secret_whoever_comes_first(tmp_path: Path) -> None:
    for number in range(20):
        environ = {"HOME": str(tmp_path / str(number))}
        with ThreadPoolExecutor(8) as pool:
            found = set(pool.map(lambda _, environ=environ: find_secret("", environ), range(8)))
        assert len(found) == 1
        assert len(found.pop()) == 64
        (kept,) = (tmp_path / str(number) / ".config" / "whichrank").iterdir()
        assert kept.stat().st_mode & 0o777 == 0o600


def test_two_users_have_different_ones(tmp_path: Path) -> None:
    assert find_secret("", {"XDG_CONFIG_HOME": str(tmp_path / "a")}) != find_secret(
        "", {"XDG_CONFIG_HOME": str(tmp_path / "b")}
    )


@pytest.mark.parametrize("wrong", ["readable", "link", "short", "folder", *(["foreign"] if os.geteuid() == 0 else [])])
def test_a_file_that_others_may_have_made_or_read_is_refused_with_the_remedy(tmp_path: Path, wrong: str) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    find_secret("", environ)
    path = tmp_path / "whichrank" / "judge-secret"
    if wrong == "readable":
        path.chmod(0o644)
    elif wrong == "short":
        path.write_text("x")
    elif wrong == "foreign":
        os.chown(path, 12_001, -1)
    else:
        path.unlink()
        if wrong == "link":
            path.symlink_to("/etc/hostname")
        else:
            path.mkdir()
    with pytest.raises(NoSecret, match=r"judge-secret: .*(chmod|delete|set WHICHRANK_JUDGE_SECRET)"):
        find_secret("", environ)


def test_without_a_home_it_says_what_to_set() -> None:
    with pytest.raises(NoSecret, match="set WHICHRANK_JUDGE_SECRET on all nodes"):
        find_secret("", {})
