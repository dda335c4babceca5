"""Learned time-outs, and progress from attempt to attempt."""

from __future__ import annotations

import pytest

from whichrank.diagnosis.restarts.learned_timeouts import SectionMisuse, SectionWatch, Timeouts, learn
from whichrank.diagnosis.restarts.restart_progress import ProgressWatch


def sections(*events: tuple[str, str, float], began_s: float = 0.0) -> SectionWatch:
    found = SectionWatch(names=frozenset({"step", "save"}), began_s=began_s)
    for what, name, t_s in events:
        (found.open if what == "open" else found.close)(name, t_s)
    return found


def test_the_longest_of_all_ranks_times_the_factor() -> None:
    one = sections(("open", "step", 2), ("close", "step", 5), ("open", "step", 6), ("close", "step", 8))
    two = sections(("open", "step", 1), ("open", "save", 2), ("close", "step", 3), ("close", "save", 9))
    learned = learn([one, two], safety_factor=5)
    assert learned == Timeouts(sections={"step": 15, "save": 35}, out_of_section=10)


def test_time_between_sections_counts_only_while_none_is_open() -> None:
    watch = sections(("open", "step", 5), ("open", "save", 6), ("close", "step", 50), ("close", "save", 51))
    assert watch.longest_outside == 5
    watch.open("step", 60)
    assert watch.longest_outside == 9


def test_what_was_learned_is_moved_half_way_and_what_was_not_seen_stays() -> None:
    before = Timeouts(sections={"step": 100, "save": 7}, out_of_section=40)
    learned = learn([sections(("open", "step", 10), ("close", "step", 20))], before=before, safety_factor=1)
    assert learned == Timeouts(sections={"step": 55, "save": 7}, out_of_section=25)


def test_nothing_seen_is_nothing_learned() -> None:
    assert learn([sections()]) == Timeouts()
    assert learn([]) == Timeouts()


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([("open", "step", 1), ("open", "step", 2)], "opened while it is open"),
        ([("close", "step", 1)], "closed while it is not open"),
        ([("open", "other", 1)], "none of save, step"),
        ([("open", "step", 5), ("close", "step", 4)], "time goes back"),
    ],
)
def test_misuse_is_refused(events: list[tuple[str, str, float]], said: str) -> None:
    with pytest.raises(SectionMisuse, match=said):
        sections(*events)


def test_close_all() -> None:
    watch = sections(("open", "step", 1), ("open", "save", 2))
    watch.close_all(5)
    assert watch.longest == {"step": 4, "save": 3}


def test_three_attempts_without_progress_are_enough() -> None:
    watch = ProgressWatch(min_iterations=100)
    assert [watch.end_cycle(reached) for reached in (500, 700, 750, 760, 770)] == [False] * 4 + [True]


def test_progress_starts_the_count_anew() -> None:
    watch = ProgressWatch(min_iterations=100)
    for reached in (500, 510, 520, 900):
        watch.end_cycle(reached)
    assert watch.cycles_without == 0


def test_an_unreadable_mark_counts_for_nothing() -> None:
    watch = ProgressWatch(min_iterations=1, mark=500, cycles_without=2)
    assert watch.end_cycle(None, is_readable=False) is False
    assert watch.cycles_without == 2
    assert watch.end_cycle(500) is True


def test_an_attempt_without_an_iteration_is_no_progress_once_there_was_one() -> None:
    watch = ProgressWatch()
    watch.end_cycle(None)
    assert watch.cycles_without == 0
    watch.end_cycle(10)
    watch.end_cycle(None)
    assert (watch.cycles_without, watch.mark) == (1, 10)
