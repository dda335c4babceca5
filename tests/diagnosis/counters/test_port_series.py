"""Series in files: the formats, what cannot be read, and the command over them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from whichrank.commands.main import app
from whichrank.diagnosis.counters.port_series import SeriesReader, seconds_of
from whichrank.diagnosis.counters.sample import LinkState

DROP = [
    {"t": t_s, "device": "mlx5_0", "port": 1, "state": state, "rate": 400, "link_downed": downs}
    for t_s, state, downs in ((0, "4: ACTIVE", 0), (60, "1: DOWN", 1), (200, "DOWN", 1), (400, "down", 1))
]


def test_json_lines_one_port_each_or_a_list() -> None:
    flat = list(SeriesReader().json_lines(json.dumps(row) for row in DROP))
    nested = list(
        SeriesReader().json_lines(
            json.dumps({"t": row["t"], "ports": [{key: value for key, value in row.items() if key != "t"}]})
            for row in DROP
        )
    )
    assert flat == nested
    assert [look.sample.t_s for look in flat] == [0, 60, 200, 400]
    (port,) = flat[1].sample.ports
    assert (port.name, port.state, dict(port.counters)) == ("mlx5_0/1", LinkState.DOWN, {"link_downed": 1})


def test_tables_wide_and_long() -> None:
    wide = "t,device,port,state,rate,link_downed\n" + "".join(
        ",".join(str(row[key]) for key in ("t", "device", "port", "state", "rate", "link_downed")) + "\n"
        for row in DROP
    )
    long = "time\tdevice\tport\tstate\trate\tcounter\tvalue\n" + "".join(
        f"{row['t']}\tmlx5_0\t1\t{row['state']}\t400\tlink_downed\t{row['link_downed']}\n" for row in DROP
    )
    flat = list(SeriesReader().json_lines(json.dumps(row) for row in DROP))
    assert list(SeriesReader().table(wide.splitlines(), ",")) == flat
    assert list(SeriesReader().table(long.splitlines(), "\t")) == flat


def test_several_nodes_are_kept_apart() -> None:
    rows = [{"t": 1, "node": node, "device": "mlx5_0", "state": "ACTIVE"} for node in ("a", "b")]
    assert [look.node for look in SeriesReader().json_lines(json.dumps(row) for row in rows)] == ["a", "b"]


def test_bad_rows_are_counted_and_the_first_is_named() -> None:
    reader = SeriesReader()
    lines = ["{", "[]", '{"t": 1}', '{"device": "a"}', json.dumps(DROP[0]), '{"t": NaN, "device": "x"}']
    assert len(list(reader.json_lines(lines))) == 1
    assert (reader.bad_rows, reader.first_bad) == (5, (1, "no JSON"))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (12, 12.0),
        ("12.5", 12.5),
        (1_700_000_000_123, 1_700_000_000.123),
        (1_700_000_000_000_000_000, 1_700_000_000.0),
        ("2026-01-31T12:00:00Z", 1_769_860_800.0),
        ("2026-01-31 12:00:00", 1_769_860_800.0),
        ("soon", None),
        (None, None),
        (True, None),
        (float("inf"), None),
        (10**400, None),
    ],
)
def test_times(value: object, seconds: float | None) -> None:
    assert seconds_of(value) == seconds


def test_any_text_is_survived() -> None:
    draw = random.Random(3)
    good = [json.dumps(row) for row in DROP]
    for _ in range(300):
        lines = [draw.choice(good) for _ in range(4)]
        at = draw.randrange(4)
        line = lines[at]
        cut = draw.randrange(len(line) + 1)
        junk = draw.randbytes(draw.choice((0, 3, 300))).decode("utf-8", "replace")
        lines[at] = draw.choice((line[:cut], line[:cut] + junk + line[cut:], junk, "\0" * 50, "[" * 5000))
        list(SeriesReader().json_lines(lines))
        list(SeriesReader().table(["t,device,state", *lines], ","))


def diagnose(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["diagnose", "counters", *words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_the_command_says_what_and_since_when(tmp_path: Path) -> None:
    file = tmp_path / "ports.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in DROP))
    code, said = diagnose(str(file), "--json")
    document = json.loads(said)
    assert code == 0
    assert (document["schema"], document["looks"]) == (1, 4)
    down = next(each for each in document["conditions"] if each["condition"] == "link_down")
    assert (down["port"], down["since_s"], down["is_open"], down["severity"]) == ("mlx5_0/1", 60, True, "critical")
    code, said = diagnose(str(file))
    assert code == 0
    assert "link_down" in said
    assert "still" in said


def test_what_ports_carried_is_told_in_bytes(tmp_path: Path) -> None:
    file = tmp_path / "ports.csv"
    file.write_text("t,device,port_xmit_data\n0,mlx5_0,100\n10,mlx5_0,600\n")
    (port,) = json.loads(diagnose(str(file), "--json")[1])["ports"]
    assert (port["port"], port["sent_bytes"], port["received_bytes"]) == ("mlx5_0/1", 2000, 0)


def test_snapshots_by_time(tmp_path: Path) -> None:
    for name, state in (("20260131-120000", "4: ACTIVE"), ("20260131-121000", "1: DOWN")):
        port = tmp_path / name / "class/infiniband/mlx5_0/ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text(state)
    document = json.loads(diagnose(str(tmp_path), "--json")[1])
    assert [each["condition"] for each in document["conditions"]] == ["link_down"]
    assert document["conditions"][0]["since_s"] == 1_769_861_400.0


def test_expectations(tmp_path: Path) -> None:
    file = tmp_path / "ports.jsonl"
    file.write_text(json.dumps(DROP[0]) + "\n")
    document = json.loads(diagnose(str(file), "--json", "--gpu", "H100")[1])
    assert [each["condition"] for each in document["conditions"]] == ["ports_too_few"]
    assert json.loads(diagnose(str(file), "--json", "--ports", "1", "--gbps", "400")[1])["conditions"] == []


@pytest.mark.parametrize(
    ("content", "words", "said"),
    [
        (b"", (), "no port in it"),
        (b"hello\nworld\n", (), "line 1: no JSON"),
        (b"\x00\xff\xfe\n" * 10, (), "ports.jsonl"),
        (b"{}\n", ("--gpu", "H1000"), "not known"),
        (b"{}\n", ("--gpu", "H100", "--ports", "8"), "give either"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, content: bytes, words: tuple[str, ...], said: str) -> None:
    file = tmp_path / "ports.jsonl"
    file.write_bytes(content)
    code, output = diagnose(str(file), *words)
    assert code == 2
    assert said in output
    assert output.count("\n") == 1


def test_no_file_is_one_line(tmp_path: Path) -> None:
    code, output = diagnose(str(tmp_path / "nothing"))
    assert code == 2
    assert "nothing" in output


def test_a_line_of_many_megabytes_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "ports.jsonl"
    file.write_text("{" + "x" * (9 << 20) + "\n" + json.dumps(DROP[0]) + "\n")
    document = json.loads(diagnose(str(file), "--json")[1])
    assert (document["looks"], document["bad_rows"]) == (1, 1)
