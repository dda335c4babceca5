"""``whichrank incidents``: what is listed, shown and put into an archive, from the folder of a run."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.commands.incidents.documents import ID, LAUNCH, document, evidence, make_run
from whichrank.commands.incidents.chosen import Chosen, KeptFile, belongs, choose
from whichrank.commands.incidents.contents import arrange, find_missing
from whichrank.commands.main import app
from whichrank.commands.run_folder.run_directory import Unusable
from whichrank.telemetry.incident_reading import read_incident


def whichrank(*words: object) -> Any:
    return CliRunner().invoke(app, ["incidents", *map(str, words)])


def unpack(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as opened:
        members = opened.getmembers()
        assert [member.name for member in members] == sorted(member.name for member in members)
        found = {}
        for member in members:
            assert (member.uid, member.gid, member.uname, member.mode) == (0, 0, "", 0o644)
            content = opened.extractfile(member)
            assert content is not None
            found[member.name] = content.read()
        return found


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", document(), document(revision=2))


def test_an_archive_holds_all_that_is_known_and_nothing_of_others(run: Path, tmp_path: Path) -> None:
    archive = tmp_path / "ticket.tar.gz"
    done = whichrank("export", ID[:6], "--from", run, "--out", archive)
    assert done.exit_code == 0, done.output
    files = unpack(archive)
    root = f"incident-{ID}"
    assert sorted(files) == sorted(
        f"{root}/{name}"
        for name in (
            "README.txt",
            "flight-recorder/trace_0",
            "incident.json",
            "kernel-log/node-1.log",
            "manifest.json",
            f"rank-00000/{LAUNCH}-4710-waits.stack.txt",
            f"rank-00001/{LAUNCH}-4711-0.log",
            f"rank-00001/{LAUNCH}-4711-history.ring-events.gz",
            f"rank-00001/{LAUNCH}-4711-not_entered.ring.gz",
            f"rank-00001/{LAUNCH}-4711-not_entered.stack.txt",
        )
    )
    assert files[f"{root}/flight-recorder/trace_0"] == b"dump of rank 0"
    assert files[f"{root}/rank-00001/{LAUNCH}-4711-0.log"] == b"the last words\n"
    manifest = json.loads(files[f"{root}/manifest.json"])
    assert {file["path"]: (file["bytes"], file["sha256"]) for file in manifest["files"]} == {
        name.removeprefix(f"{root}/"): (len(content), hashlib.sha256(content).hexdigest())
        for name, content in files.items()
        if not name.endswith("manifest.json")
    }
    assert [(row["what"], row["who"]) for row in manifest["missing"]] == [("flight_recorder", "rank 1")]
    assert "missing: flight recorder of rank 1: it has written no dump" in done.output
    told = json.loads(files[f"{root}/incident.json"])
    assert ([each["revision"] for each in told["revisions"]], told["incident"]["revision"]) == ([1, 2], 2)


def test_the_readme_says_who_since_when_and_why(run: Path, tmp_path: Path) -> None:
    assert whichrank("export", ID, "--from", run, "--out", tmp_path / "a.tar.gz").exit_code == 0
    text = unpack(tmp_path / "a.tar.gz")[f"incident-{ID}/README.txt"].decode()
    for words in (
        f"Incident {ID}, revision 2: page, open",
        "rank 1 (pid 4711, node-1)",
        "/job/train.py:88 in data",
        "2023-11-14 22:13:20 UTC",
        "step 41, operation all_reduce, sequence 97, group world",
        "has not entered",
        "rank 0: printed a time-out, but it waits",
        "restart_without_node: leave node-1 out",
        "host node-1, exit_code 1",
        "flight recorder of rank 1: it has written no dump",
        "kernel-log/node-1.log",
    ):
        assert words in text, words


def test_secrets_are_in_no_text_of_the_archive(run: Path, tmp_path: Path) -> None:
    assert whichrank("export", ID, "--from", run, "--out", tmp_path / "a.tar.gz").exit_code == 0
    files = unpack(tmp_path / "a.tar.gz")
    assert not [name for name, content in files.items() if b"hunter2" in content]
    assert b"api_key=[removed]" in files[f"incident-{ID}/README.txt"]


def test_the_same_evidence_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "1.tar.gz", tmp_path / "2.tar.gz"
    assert whichrank("export", ID, "--from", run, "--out", first).exit_code == 0
    copy = tmp_path / "copy"
    (copy / "evidence").mkdir(parents=True)
    for path in sorted(run.rglob("*"), reverse=True):
        if path.is_file():
            shutil.copyfile(path, copy / path.relative_to(run))
            os.utime(copy / path.relative_to(run), (1, 1))
    assert whichrank("export", ID, "--from", copy, "--out", second).exit_code == 0
    assert first.read_bytes() == second.read_bytes()


def test_json_of_each_command(run: Path, tmp_path: Path) -> None:
    listed = json.loads(whichrank("list", "--from", run, "--json").stdout)
    assert (listed["schema"], [row["id"] for row in listed["incidents"]]) == (1, [ID])
    assert listed["incidents"][0]["suspects"] == [
        {"scope": "rank", "id": "1", "rank": 1, "node": "node-1", "gpu": None}
    ]
    shown = json.loads(whichrank("show", ID, "--from", run, "--json").stdout)
    assert (shown["schema"], shown["revisions"], shown["incident"]) == (1, 2, document(revision=2))
    out = tmp_path / "x.tar.gz"
    exported = json.loads(whichrank("export", ID, "--from", run, "--out", out, "--json").stdout)
    assert (exported["schema"], exported["archive"], exported["bytes"]) == (1, str(out), out.stat().st_size)
    assert [row["what"] for row in exported["missing"]] == ["flight_recorder"]


def test_people_see_a_table_and_a_box(run: Path) -> None:
    assert f"{ID}  open   page" in whichrank("list", "--from", run).stdout
    assert "has not entered" in whichrank("show", ID, "--from", run).stdout


def test_the_newest_run_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("new", "old")):
        made = make_run(tmp_path / "whichrank-out" / name, document(id_=f"{number}" * 16))
        os.utime(made / "incidents.jsonl", (100 - number, 100 - number))
    (tmp_path / "whichrank-out" / "nothing").mkdir()
    assert [row["id"] for row in json.loads(whichrank("list", "--json").stdout)["incidents"]] == ["0" * 16]


def test_evidence_of_the_other_nodes_lies_beside(run: Path, tmp_path: Path) -> None:
    other = run / "node-n2" / "evidence"
    other.mkdir(parents=True)
    (other / f"{ID}-{LAUNCH}-node-n2-kernel.log").write_bytes(b"of the other node\n")
    assert whichrank("export", ID, "--from", run, "--out", tmp_path / "a.tar.gz").exit_code == 0
    assert unpack(tmp_path / "a.tar.gz")[f"incident-{ID}/kernel-log/n2.log"] == b"of the other node\n"


def test_of_a_merged_incident_the_one_that_took_it_is_exported_with_both_ones_evidence(tmp_path: Path) -> None:
    other = "1111111111111111"
    merged = document(id_=other, revision=2, state="merged", merged_into=ID, change="merged")
    files = {**evidence(), f"{other}-{LAUNCH}-rank-00001-4711-0.log": b"asked for by the other\n"}
    run = make_run(tmp_path / "run", document(), document(id_=other), merged, files=files)
    done = whichrank("export", other, "--from", run, "--out", tmp_path / "a.tar.gz")
    assert f"{other} went into incident {ID}" in done.output
    unpacked = unpack(tmp_path / "a.tar.gz")
    assert unpacked[f"incident-{ID}/rank-00001/{LAUNCH}-4711-0.log"] == b"the last words\n"
    assert unpacked[f"incident-{ID}/rank-00001/{other}/{LAUNCH}-4711-0.log"] == b"asked for by the other\n"
    assert f"Part of it, told apart at first:\n  {other}" in unpacked[f"incident-{ID}/README.txt"].decode()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("show", "zz"), "no incident zz; whichrank incidents list names the 2 there are"),
        (("show", "0"), "0 is the beginning of 2 incidents: "),
        (("show", ""), "no incident ; "),
        (("list", "--kafka", "h:1"), "--from and --kafka: choose one of them"),
        (("export", ID, "--out", "/proc/none/x"), "/proc/none/x: cannot be written: "),
        (("export", ID, "--out", "/etc/hostname"), "/etc/hostname: exists already; choose another --out, or --force"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, words: tuple[str, ...], line: str) -> None:
    run = make_run(tmp_path / "run", document(), document(id_="0" * 16))
    done = whichrank(words[0], *words[1:], "--from", run)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"whichrank: {line}")
    assert done.stderr.count("\n") == 1


def test_a_folder_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert whichrank("list").stderr.startswith("whichrank: whichrank-out: no run in it")
    assert whichrank("list", "--from", tmp_path).stderr == (
        f"whichrank: {tmp_path}/incidents.jsonl: not there; is {tmp_path} the folder of a run? (--from)\n"
    )


def test_damaged_lines_and_odd_files_are_left_out(run: Path, tmp_path: Path) -> None:
    draw = random.Random(3)
    good = (run / "incidents.jsonl").read_bytes()
    odd = b"".join(draw.randbytes(draw.randrange(60)).replace(b"\n", b"") + b"\n" for _ in range(50))
    (run / "incidents.jsonl").write_bytes(b'{"schema": 1}\n' + odd + good + b'{"half": ' + b"[" * 100_000)
    (run / "evidence" / f"{ID}-link.log").symlink_to("/etc/passwd")
    os.mkfifo(run / "evidence" / f"{ID}-pipe.log")
    (run / "evidence" / f"{ID}-{LAUNCH}-rank-00001-4711-bad.dump.gz").write_bytes(b"no gzip")
    done = whichrank("export", ID, "--from", run, "--out", tmp_path / "a.tar.gz")
    assert done.exit_code == 0, done.output
    assert "incidents.jsonl: line 1 is no incident document, and left out" in done.output
    names = unpack(tmp_path / "a.tar.gz")
    assert not [name for name in names if "link" in name or "pipe" in name]
    assert not [name for name in names if "bad" in name]  # nobody can say what is in it
    assert f"{ID}-{LAUNCH}-rank-00001-4711-bad.dump.gz: damaged, and left out" in done.output


def test_no_name_leads_out_of_the_archives_folder() -> None:
    chosen, draw = Chosen(revisions=(read_incident(document()),)), random.Random(5)
    parts = [f"{ID}-", LAUNCH, "-rank-00001-", "-node-", "..", "/", "../../etc/passwd", "\0", "4711", "-kernel.log"]
    parts += ["-x.dump.gz", "-0.log", "ä", "\n", ".stack.txt"]
    for _ in range(3000):
        name = "".join(draw.choice(parts) for _ in range(draw.randrange(1, 9)))
        belongs(name, chosen)
        for entry in arrange([KeptFile(name=name, content=b"x")], chosen):
            assert not {"..", ".", ""} & set(entry.path.split("/")), (name, entry.path)
            assert entry.path.isprintable()


def test_what_is_missing_depends_on_the_kind() -> None:
    def missing(**fields: Any) -> list[tuple[str, str]]:
        return [
            (each.what, each.who) for each in find_missing(Chosen(revisions=(read_incident(document(**fields)),)), [])
        ]

    actions = ("stack", "log_tail", "history", "flight_recorder")
    assert missing() == [*((action, "rank 1") for action in actions), ("kernel_log", "node-1")]
    assert missing(kind="rank_died", bucket="immediate_crash") == [("log_tail", "rank 1"), ("kernel_log", "node-1")]
    assert missing(kind="planned_stop", bucket="planned") == []
    assert missing(suspects=[]) == []
    refused = KeptFile(
        name=f"{ID}-{LAUNCH}-node-node-1-kernel.log", content=b"# the kernel log cannot be read: /dev/kmsg: no right\n"
    )
    slow = document(kind="rank_slow", bucket="speed_regression", suspects=document()["suspects"])
    chosen = Chosen(revisions=(read_incident(slow),))
    (*_, kernel) = find_missing(chosen, arrange([refused], chosen))
    assert str(kernel) == "kernel log of node-1: /dev/kmsg: no right"


def test_merges_in_a_circle_end() -> None:
    first, second = (
        read_incident(document(id_=id_ * 16, state="merged", change="merged", merged_into=into * 16))
        for id_, into in ("12", "21")
    )
    assert len(choose([first, second], "1").ids) == 2
    with pytest.raises(Unusable):
        choose([], "1")
