"""Flight-recorder dumps and NCCL's RAS beside the rings' own verdict: they agree, contradict, name, or cannot tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.diagnosis.flight_recorder.played_job import STARTED, PlayedJob
from tests.processors.job.synthetic_device_job import DeviceJob
from tests.processors.job.synthetic_job import FOREVER, MemoryContext, SyntheticJob, drive
from whichrank.diagnosis.flight_recorder.dump_facts import write_facts
from whichrank.diagnosis.flight_recorder.rank_dump import decode_dump
from whichrank.diagnosis.nccl_ras import RasFinding, RasProblem, RasProcess
from whichrank.diagnosis.ras_facts import write_ras_facts
from whichrank.telemetry.records import Event
from whichrank.telemetry.vocabulary import EventName, Level, Phase

GUILTY, RANKS, ONSET_S = 2, 4, 4.0
#: When the hang is a page, and has been for a while.
TOLD_S = 14.0
Events = list[tuple[float, EventName, int, dict[str, Any]]]


def hanging(**more: Any) -> SyntheticJob:
    """Rank 2 does not come to step 20's calls; the others wait in them."""
    delay = lambda rank, step, phase: FOREVER if (rank, step, phase) == (GUILTY, 20, Phase.FORWARD) else 0.0  # noqa: E731
    return SyntheticJob(ranks=RANKS, steps=40, delays=[delay], after_s=20.0, **more)


def dumped(absent: int = GUILTY, ranks: int = RANKS) -> PlayedJob:
    """All but one are in the call after fifty."""
    job = PlayedJob(ranks)
    for _ in range(50):
        job.call("0")
    job.call("0", by=[rank for rank in range(ranks) if rank != absent], state=STARTED)
    return job


def facts(job: PlayedJob, rank: int) -> dict[str, Any]:
    return {"name": f"fr_{rank}", "facts": write_facts(decode_dump(job.dump(rank), rank, "", keep=10_000))}


def told(job: PlayedJob, without: tuple[int, ...] = (), at_s: float = TOLD_S) -> Events:
    ranks = [rank for rank in range(job.ranks) if rank not in without]
    return [(at_s + 0.1 * rank, EventName.RANK_FLIGHT_RECORDER, rank, facts(job, rank)) for rank in ranks]


def finding(context: MemoryContext) -> dict[str, Any]:
    (found,) = context.final().values()
    return dict(found.body)


def suspects(body: dict[str, Any]) -> list[int]:
    return [item["rank"] for item in body["suspects"]]


def rows(body: dict[str, Any], signal: str) -> list[str]:
    return [row["shows"] for row in body["evidence"] if row["signal"].startswith(signal)]


ALONE = finding(drive(hanging().records()))


def test_the_rings_alone_name_the_rank() -> None:
    assert (ALONE["kind"], suspects(ALONE), rows(ALONE, "flight_recorder")) == ("rank_not_entered", [GUILTY], [])


def test_dumps_that_agree_halve_the_doubt() -> None:
    body = finding(drive(hanging(events=told(dumped())).records()))
    (row,) = rows(body, "flight_recorder.agrees")
    assert "4 of 4 ranks agrees: rank 2 did not enter" in row
    assert suspects(body) == [GUILTY]
    assert body["confidence"] == pytest.approx(1 - (1 - ALONE["confidence"]) / 2, abs=1e-3)
    assert {row["trust"] for row in body["evidence"] if row["signal"].startswith("flight")} == {"user"}


def test_dumps_that_contradict_are_said_and_never_change_the_suspect() -> None:
    body = finding(drive(hanging(events=told(dumped(absent=1))).records()))
    (row,) = rows(body, "flight_recorder.contradicts")
    assert "speaks against rank 2" in row
    assert "rank 1" in row
    assert suspects(body) == [GUILTY]
    assert body["confidence"] == pytest.approx(ALONE["confidence"] / 2, abs=1e-3)


def test_all_are_in_the_call_by_their_dumps() -> None:
    job = dumped(absent=-1)
    body = finding(drive(hanging(events=told(job)).records()))
    assert rows(body, "flight_recorder.contradicts")
    assert suspects(body) == [GUILTY]


@pytest.mark.parametrize("without", [(GUILTY,), (0, GUILTY), (GUILTY, 3)])
def test_a_missing_dump_says_nothing(without: tuple[int, ...]) -> None:
    """Neither that its rank is guilty nor that it is not."""
    body = finding(drive(hanging(events=told(dumped(), without)).records()))
    (row,) = rows(body, "flight_recorder.unclear")
    assert "knows nothing, which says nothing about them" in row
    assert (suspects(body), body["confidence"]) == ([GUILTY], ALONE["confidence"])


def test_dumps_of_a_job_that_runs_say_nothing() -> None:
    job = PlayedJob(RANKS)
    for _ in range(50):
        job.call("0")
    assert drive(SyntheticJob(ranks=RANKS, steps=100, events=told(job, at_s=8.0)).records()).final() == {}
    ragged = dumped()
    assert drive(SyntheticJob(ranks=RANKS, steps=100, events=told(ragged, at_s=8.0)).records()).final() == {}
    body = finding(drive(hanging(events=told(job)).records()))
    assert rows(body, "flight_recorder.unclear")
    assert body["confidence"] == ALONE["confidence"]


def test_dumps_from_before_the_hang_say_nothing_of_it() -> None:
    body = finding(drive(hanging(events=told(dumped(absent=1), at_s=1.0)).records()))
    assert rows(body, "flight_recorder") == []
    assert body == ALONE


@pytest.mark.parametrize(
    "values",
    [
        {"problem": "asks for posix.system: refused"},
        {"facts": "{"},
        {"facts": "[" * 20_000},
        {"facts": '{"v":1,"calls":[],"entries":[[0,0,0,0,0,0,0,0]]}'},
        {"facts": '{"v":99}'},
        {"facts": "x" * 100_000},
        {"facts": 7, "written_ns": "soon"},
        {"facts": '{"v":1,"calls":[],"entries":[],"groups":{"0":["",' + '"0-999999999"]}}'},
        {},
    ],
)
def test_what_is_no_dump_is_said_and_does_no_harm(values: dict[str, Any]) -> None:
    bad: Events = [(TOLD_S, EventName.RANK_FLIGHT_RECORDER, 0, values)]
    body = finding(drive(hanging(events=[*bad, *told(dumped(), (0,))]).records()))
    assert suspects(body) == [GUILTY]
    assert len(rows(body, "flight_recorder.")) == 1
    alone = finding(drive(hanging(events=bad).records()))
    assert (suspects(alone), alone["confidence"]) == ([GUILTY], ALONE["confidence"])
    assert rows(alone, "flight_recorder.unclear")


@pytest.mark.parametrize("low", [Level.OFF])
def test_dumps_alone_tell_where_rings_are_off(low: Level) -> None:
    blind: Any = {"level": lambda rank, at: low}
    assert drive(hanging(**blind).records()).final() == {}
    body = finding(drive(hanging(**blind, events=told(dumped())).records()))
    assert (body["kind"], suspects(body), body["bucket"]) == ("rank_not_entered", [GUILTY], "communication_hang")
    assert rows(body, "flight_recorder.names")
    assert body["severity"] == "page"
    assert body["confidence"] > 0.5


def test_rings_that_are_off_in_a_job_that_runs_open_nothing() -> None:
    """Dumps that people ask for while the job trains look like a hang of those that dumped first."""
    job = SyntheticJob(ranks=RANKS, steps=150, level=lambda rank, at: Level.OFF, events=told(dumped(), at_s=8.0))
    assert drive(job.records()).final() == {}


def test_victims_errors_name_one_of_them_at_best_and_dumps_the_one_that_is_waited_for() -> None:
    message = {"type": "DistBackendError", "message": "watchdog timeout", "communication": True, "pid": 1}
    gone = {"exit_code": 1, "exception": True, "pid": 1}
    waiting = [rank for rank in range(RANKS) if rank != GUILTY]
    ends: Events = [(TOLD_S + 0.01 * rank, EventName.RANK_EXCEPTION, rank, message) for rank in waiting]
    ends += [(TOLD_S + 0.2 + 0.01 * rank, EventName.RANK_EXIT, rank, gone) for rank in waiting]
    ends += [(TOLD_S + 0.5, EventName.RANK_EXIT, GUILTY, {"signal": 15, "pid": 1})]
    blind: Any = {"level": lambda rank, at: Level.OFF}
    without = finding(drive(hanging(**blind, events=ends).records()))
    assert (without["kind"], suspects(without), without["confidence"] < 0.5) == ("rank_died", [0], True)
    body = finding(drive(hanging(**blind, events=[*ends, *told(dumped(), at_s=TOLD_S + 4)]).records()))
    assert (body["kind"], suspects(body), body["bucket"]) == ("rank_not_entered", [GUILTY], "communication_hang")
    assert rows(body, "flight_recorder.corrects")
    assert {"0", "1", "3"} <= {entry["ranks"] for entry in body["ruled_out"]}


def test_what_was_seen_directly_is_not_corrected_by_dumps() -> None:
    """A rank that ended by an error of its own has done so, whether its ring was off or not."""
    own = {"type": "ValueError", "message": "bad sample", "communication": False, "pid": 1}
    ends: Events = [(TOLD_S, EventName.RANK_EXCEPTION, 0, own)]
    blind: Any = {"level": lambda rank, at: Level.OFF}
    body = finding(drive(hanging(**blind, events=[*ends, *told(dumped(), at_s=TOLD_S + 1)]).records()))
    assert (body["kind"], suspects(body)) == ("rank_raised", [0])
    assert rows(body, "flight_recorder.contradicts")


def test_batches_and_restarts_of_the_judge_change_nothing() -> None:
    told_by = [*told(dumped()), *ras(behind(GUILTY))]
    records = hanging(events=told_by).records()
    whole = finding(drive(records))
    assert rows(whole, "flight_recorder.agrees")
    assert finding(drive(records, batches=[13, 1, 50])) == whole
    assert finding(drive(records, fresh_each_time=True)) == whole


# --- NCCL's RAS -------------------------------------------------------------------------------------------------------
def ras(*findings: RasFinding, at_s: float = TOLD_S, **more: Any) -> Events:
    return [(at_s, EventName.NCCL_RAS, 0, {"status": "answered", "findings": write_ras_facts(findings), **more})]


def behind(*ranks: int, size: int = RANKS, problem: RasProblem = RasProblem.MISMATCH) -> RasFinding:
    return RasFinding(problem=problem, communicator="5ae8", says="differ", ranks=ranks, processes=(), size=size)


def test_ras_agrees_contradicts_or_cannot_tell() -> None:
    agrees = finding(drive(hanging(events=ras(behind(GUILTY))).records()))
    assert agrees["confidence"] == pytest.approx(1 - (1 - ALONE["confidence"]) / 2, abs=1e-3)
    assert "rank 2 is behind in communicator 5ae8" in rows(agrees, "nccl_ras.agrees")[0]
    against = finding(drive(hanging(events=ras(behind(0))).records()))
    assert (suspects(against), against["confidence"]) == ([GUILTY], pytest.approx(ALONE["confidence"] / 2, abs=1e-3))
    for told_by in (ras(), ras(behind(2, size=8)), ras(behind(0, 1, 2, 3, problem=RasProblem.TIMEOUT))):
        body = finding(drive(hanging(events=told_by).records()))
        assert rows(body, "nccl_ras.unclear")
        assert (suspects(body), body["confidence"]) == ([GUILTY], ALONE["confidence"])


def test_a_process_of_ras_is_a_rank_where_its_pid_is_one_ranks_alone() -> None:
    pid = next(item["pid"] for item in ALONE["suspects"])
    dead = RasFinding(
        problem=RasProblem.DEAD,
        communicator="",
        says="unreachable",
        ranks=(),
        processes=(RasProcess(pid, "10.0.0.1", 2),),
    )
    assert rows(finding(drive(hanging(events=ras(dead)).records())), "nccl_ras.agrees")
    nobody = replace(dead, processes=(RasProcess(99_999, "10.0.0.1", 2),))
    assert rows(finding(drive(hanging(events=ras(nobody)).records())), "nccl_ras.unclear")


@pytest.mark.parametrize("findings", ["", "{", "[" * 9000, '[{"problem":"ODD"}]', "x" * 99_999, '{"a":1}'])
def test_a_ras_that_lies_does_no_harm(findings: str) -> None:
    values = {"status": "answered", "findings": findings}
    body = finding(drive(hanging(events=[(TOLD_S, EventName.NCCL_RAS, 0, values)]).records()))
    assert (suspects(body), body["confidence"]) == ([GUILTY], ALONE["confidence"])


def test_ras_is_asked_once_and_seldom_again_and_only_where_nccl_is() -> None:
    def asked(job: SyntheticJob | DeviceJob) -> list[dict[str, Any]]:
        events = [one.payload for one in drive(job.records()).emitted if isinstance(one.payload, Event)]
        return [dict(event.attributes) for event in events if event.attributes.get("action") == "nccl_ras"]

    assert asked(hanging()) == [], "its groups are on gloo"
    device = DeviceJob(host=lambda rank, step: FOREVER if rank == 2 and step >= 20 else 0.0, step_s=0.1)
    first, *later = asked(device)
    assert first["rank"] != 2
    assert len(later) <= 1
