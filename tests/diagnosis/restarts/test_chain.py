"""Chains of restarts: what is worth a word, and what looks like it and is not."""

from __future__ import annotations

from dataclasses import replace

from whichrank.diagnosis.restarts.chain import (
    ChainView,
    Checkpoint,
    Cycle,
    EndedTask,
    Generation,
    Task,
    chain_limits,
    watch,
)

NOW_S = 1_000_000.0
FOUR = ("n1", "n2", "n3", "n4")


def cycle(number: int, minutes_ago: float, minutes: float | None = 5.0, active: tuple[str, ...] = FOUR) -> Cycle:
    start_s = NOW_S - 60 * minutes_ago
    end_s = None if minutes is None else start_s + 60 * minutes
    return Cycle(job="j1", number=number, start_s=start_s, end_s=end_s, active=active, standby=("n9",))


RUNNING = Generation(job="j1", tasks=(Task(index=0, state="RUNNING"),))
WAITING = Generation(job="j1", tasks=(Task(index=1, state="PENDING"),))


def detectors(view: ChainView) -> list[str]:
    return sorted(alert.detector for alert in watch(view))


def test_a_quiet_chain_is_silent() -> None:
    saved = Checkpoint(value=100, since_s=NOW_S - 300)
    assert (
        detectors(ChainView(now_s=NOW_S, cycles=(cycle(0, 600, None),), generations=(RUNNING,), checkpoint=saved)) == []
    )
    assert detectors(ChainView(now_s=NOW_S)) == []


def test_restart_storm() -> None:
    many = tuple(cycle(at, 25 - 5 * at, 4) for at in range(5))
    assert detectors(ChainView(now_s=NOW_S, cycles=many)) == ["restart_storm"]
    assert detectors(ChainView(now_s=NOW_S, cycles=many[:4])) == []


def test_progress_stalls_only_when_the_checkpoint_is_known_to_stand() -> None:
    cycles = tuple(cycle(at, 150 - 50 * at, 40) for at in range(3))
    view = ChainView(now_s=NOW_S, cycles=cycles, checkpoint=Checkpoint(value=7, since_s=NOW_S - 60 * 151))
    assert detectors(view) == ["stalled_progress"]
    assert detectors(replace(view, checkpoint=Checkpoint(value=8, since_s=NOW_S - 60 * 120))) == []
    assert detectors(replace(view, checkpoint=None)) == [], "unknown is not zero"


def test_a_cycle_stalls_while_its_job_lives() -> None:
    saved = Checkpoint(value=7, since_s=NOW_S - 7200)
    view = ChainView(now_s=NOW_S, cycles=(cycle(0, 110, None),), generations=(RUNNING,), checkpoint=saved)
    assert detectors(view) == ["cycle_stalled"]
    assert detectors(replace(view, generations=None)) == ["cycle_stalled"], "a scheduler that cannot be asked"
    assert detectors(replace(view, generations=())) == []
    assert detectors(replace(view, cycles=(cycle(0, 59, None),))) == []


def test_the_budget() -> None:
    view = ChainView(now_s=NOW_S, cycles=(cycle(8, 600),), max_restarts=10)
    assert detectors(view) == ["restart_budget_low"]
    assert detectors(replace(view, max_restarts=11)) == []
    assert detectors(replace(view, max_restarts=0)) == []


def test_spares() -> None:
    alone = replace(cycle(0, 600, None), standby=())
    view = ChainView(now_s=NOW_S, cycles=(alone,), generations=(RUNNING,))
    assert detectors(view) == ["spares_exhausted"]
    assert detectors(replace(view, generations=(RUNNING, WAITING))) == []


def test_a_node_is_suspect_only_where_others_were_changed() -> None:
    changed = tuple(
        cycle(at, 300 - 60 * at, 2, active)
        for at, active in enumerate((("n1", "n2", "n3"), ("n2", "n4", "n5"), ("n6", "n2", "n7")))
    )
    (alert,) = watch(ChainView(now_s=NOW_S, cycles=changed))
    assert (alert.detector, alert.node) == ("suspect_node", "n2")
    same = tuple(cycle(at, 300 - 60 * at, 2) for at in range(3))
    assert detectors(ChainView(now_s=NOW_S, cycles=same)) == [], "the same nodes every time accuse nobody"
    long = (*changed[:2], replace(changed[2], end_s=changed[2].start_s + 601))
    assert detectors(ChainView(now_s=NOW_S, cycles=long)) == []
    assert detectors(ChainView(now_s=NOW_S, cycles=changed[1:])) == []


def test_an_orphan() -> None:
    gone = EndedTask(job="j1", task=0, state="FAILED", ended_s=NOW_S - 121, exit_code=1)
    view = ChainView(now_s=NOW_S, generations=(WAITING,), ended=(gone,))
    (alert,) = watch(view)
    assert (alert.detector, alert.remedy) == ("orphaned_generation", "cancel_pending j1")
    assert detectors(replace(view, ended=(replace(gone, ended_s=NOW_S - 119),))) == []
    assert detectors(replace(view, ended=())) == [], "nobody has seen the launcher end"


def test_the_end_of_a_chain() -> None:
    assert detectors(ChainView(now_s=NOW_S, is_expected=True, generations=())) == ["chain_exhausted"]
    assert detectors(ChainView(now_s=NOW_S, is_expected=True, generations=(RUNNING,))) == []
    stop = EndedTask(job="j0", task=0, state="FAILED", ended_s=NOW_S - 10, exit_code=93)
    assert detectors(ChainView(now_s=NOW_S, generations=(RUNNING,), ended=(stop,))) == ["chain_not_cancelled"]
    assert detectors(ChainView(now_s=NOW_S, generations=(RUNNING,), ended=(replace(stop, exit_code=1),))) == []


def test_generation_churn() -> None:
    cycles = tuple(replace(cycle(0, 300 - 60 * at, 30), job=f"j{at}") for at in range(4))
    assert detectors(ChainView(now_s=NOW_S, cycles=cycles)) == ["generation_churn"]
    assert detectors(ChainView(now_s=NOW_S, cycles=cycles[1:])) == []


def test_every_detector_has_limits_and_a_severity() -> None:
    assert {entry["severity"] for entry in chain_limits().values()} == {"info", "warn", "critical"}
    watch(ChainView(now_s=NOW_S))
