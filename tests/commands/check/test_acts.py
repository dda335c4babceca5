"""What a check does beside looking: nothing unless it is meant, and nothing by a name that a user can bend."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.check.checking import check
from tests.processors.entity.node import Node
from whichrank.agents.collectors.base.collector import NodeEvent
from whichrank.agents.user_files.user_files import end_helpers
from whichrank.commands.check import check_telling
from whichrank.commands.check.acts.act import ActResult, ActState, carry_out
from whichrank.commands.check.acts.reclaim import NoUser, reclaim_acts, uid_of
from whichrank.commands.check.acts.set_up import BadSetUp, read_set_up
from whichrank.telemetry.records import Event, Identity

UID, OTHER = 23_457, 23_458
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="other users' processes need root")


# --- set-up ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node's files of the kernel."""
    made = tmp_path / "root"
    for name, value in (
        ("proc/sys/vm/max_map_count", "65530"),
        ("proc/sys/fs/file-max", "2000000"),
        ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave"),
        ("proc/self/mountinfo", "22 1 0:21 / /home rw - ext4 /dev/sda rw"),
    ):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(value + "\n")
    return made


def listed(folder: Path, text: str) -> Path:
    file = folder / "setup.toml"
    file.write_text(text)
    file.chmod(0o644)
    return file


LIMITS = '[limits]\n"vm.max_map_count" = 262144\n"fs.file-max" = "2000000"\n[clocks]\ngovernor = "performance"\n'


def by_target(results: list[ActResult]) -> dict[str, ActState]:
    return {each.on: each.done for each in results}


def test_a_set_up_is_only_said_unless_it_is_meant_and_done_once(tmp_path: Path, root: Path) -> None:
    file = listed(tmp_path, "mounts = ['/home']\n" + LIMITS)
    said = by_target(carry_out(read_set_up(file, root), is_meant=False))
    assert said == {
        "vm.max_map_count": ActState.WOULD,
        "fs.file-max": ActState.ALREADY,
        "cpu0": ActState.WOULD,
        "/home": ActState.ALREADY,
    }
    assert (root / "proc/sys/vm/max_map_count").read_text() == "65530\n"
    assert by_target(carry_out(read_set_up(file, root), is_meant=True))["cpu0"] is ActState.DONE
    assert (root / "proc/sys/vm/max_map_count").read_text() == "262144\n"
    assert set(by_target(carry_out(read_set_up(file, root), is_meant=True)).values()) == {ActState.ALREADY}


def test_what_cannot_be_done_is_said(tmp_path: Path, root: Path) -> None:
    file = listed(tmp_path, '[limits]\n"vm.no_such_thing" = 1\n')
    (result,) = carry_out(read_set_up(file, root), is_meant=True)
    assert result.done is ActState.FAILED
    assert "no_such_thing" in result.why


@pytest.mark.parametrize(
    "text",
    [
        '[limits]\n"../../etc/passwd" = 1',
        '[limits]\n"vm.a" = [1]',
        "[clocks]\ngpu_mhz = 5",
        '[clocks]\ngovernor = "../x"',
        "mounts = ['home']",
        "persistence = 1",
        "[other]",
    ],
)
def test_a_wrong_file_does_nothing_at_all(tmp_path: Path, root: Path, text: str) -> None:
    with pytest.raises(BadSetUp):
        read_set_up(listed(tmp_path, text), root)


def test_a_file_that_others_can_write_is_refused(tmp_path: Path, root: Path) -> None:
    file = listed(tmp_path, LIMITS)
    file.chmod(0o666)
    with pytest.raises(BadSetUp, match="may write"):
        read_set_up(file, root)


def test_the_command_says_what_it_would_do(tmp_path: Path) -> None:
    file = listed(tmp_path, '[limits]\n"vm.max_map_count" = 65531\n')
    done = check("--only", "host", "--set-up", str(file))
    assert [(each["what"], each["done"]) for each in done.document["acts"]] == [("limit", "would")]
    assert check("--only", "host", "--reclaim", "root").exit_status == 2


# --- what a job left ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["0", "root", "65534", "999", "nobody-at-all"])
def test_nothing_of_the_systems_users_is_reclaimed(name: str) -> None:
    with pytest.raises(NoUser):
        uid_of(name)


@pytest.fixture
def left() -> Iterator[dict[str, Path]]:
    """What two users have in /dev/shm."""
    mark = uuid.uuid4().hex[:8]
    made = {name: Path("/dev/shm") / f"{mark}-{name}" for name in ("own", "other", "link", "folder")}
    for name, uid in (("own", UID), ("other", OTHER)):
        made[name].write_bytes(b"x" * 4096)
        os.chown(made[name], uid, uid)
    made["link"].symlink_to(made["other"])
    os.lchown(made["link"], UID, UID)
    made["folder"].mkdir()
    os.chown(made["folder"], UID, UID)
    yield made
    for name, path in made.items():
        if name == "folder":
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
    end_helpers()


@needs_root
def test_a_users_processes_and_memory_go_and_nobody_elses(left: dict[str, Path]) -> None:
    # What is ignored stays ignored in the program that takes its place.
    deaf = ["/bin/sh", "-c", "trap '' TERM; echo; exec sleep 600"]
    own = subprocess.Popen(deaf, user=UID, group=UID, stdout=subprocess.PIPE)
    other = subprocess.Popen(["/bin/sleep", "600"], user=OTHER, group=OTHER)
    try:
        assert own.stdout is not None
        own.stdout.readline()
        would = by_target(carry_out(reclaim_acts(UID, ()), is_meant=False))
        assert would[str(own.pid)] is ActState.WOULD
        assert would[str(left["own"])] is ActState.WOULD
        assert own.poll() is None
        assert left["own"].exists()
        done = by_target(carry_out(reclaim_acts(UID, ()), is_meant=True))
        assert done == {str(own.pid): ActState.DONE, str(left["own"]): ActState.DONE}
        assert own.wait(5) == -9
        assert other.poll() is None
        assert not left["own"].exists()
        assert all(os.path.lexists(left[name]) for name in ("other", "link", "folder"))
        assert carry_out(reclaim_acts(UID, ()), is_meant=True) == []
    finally:
        for process in (own, other):
            process.kill()
            process.wait()


@needs_root
def test_a_folder_of_temporary_files_that_is_not_the_systems_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    os.chown(folder, UID, UID)
    (folder / "a").write_text("x")
    os.chown(folder / "a", UID, UID)
    assert [each for each in reclaim_acts(UID, (str(folder),)) if each.what == "remove_file"] == []


def test_each_act_is_told_and_stands_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[Identity, NodeEvent]] = []
    monkeypatch.setattr(check_telling, "send_told", lambda options, events: told.extend(events))
    acts = [
        ActResult(what="limit", on="vm.a", text="set vm.a to 1", done=ActState.DONE),
        ActResult(what="mount", on="/a", text="mount /a", done=ActState.FAILED, why="no such device"),
        ActResult(what="mount", on="/b", text="mount /b", done=ActState.ALREADY),
    ]
    check_telling.tell_findings(check_telling.check_options("127.0.0.1:1", None, None), "prolog", [], acts)
    assert [event.attributes["text"] for _, event in told] == [
        "prolog: done: set vm.a to 1",
        "prolog: failed: mount /a: no such device",
    ]
    node = Node(check_telling.own_identity().node)
    for who, each in told:
        node.take(Event(name=each.name, identity=who, time_ns=each.time_ns, attributes=each.attributes))
    assert node.findings == []
