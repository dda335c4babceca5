"""Many runs together: what is asked, what was measured, of how many, and whether that is enough.

What a detector could not finish counts as wrong. Where too few cases were seen to say anything, nothing is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .run_score import FaultScore, RunScore
from .statistics import Share, brier, brier_of_constant, calibration_error, poisson_upper, quantile, share_of

INTRA_JOB = ("crash", "hang", "slow", "numeric")
GROUPS = (*INTRA_JOB, "inter-job", "observer", "other")
#: Least share of faults whose cause is named first.
ASKED_TOP_1 = {**dict.fromkeys((*INTRA_JOB, "intra-job"), 0.97), "inter-job": 0.95, "observer": 1.0}
#: A slow rank is found within so many steps, at the 95th percentile.
ASKED_SLOW_STEPS = 5.0
ASKED_CALIBRATION_ERROR = 0.05
#: Share of runs in which somebody may be paged more often than things went wrong; judged from so many runs on.
MOST_WITH_MORE_PAGES, ENOUGH_RUNS = 0.05, 20
#: Calibration is judged from so many incidents on.
ENOUGH_TOLD = 500
#: The simple detector is right less often, or the scenarios are too easy.
MOST_OF_BASELINE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreLine:
    """A line of results. asked "": for the reader only, never SHORT. share: k of n, with its interval where that says
    something.

    is_run: False, nothing was measured; then it is neither ok nor SHORT.
    """

    name: str
    asked: str
    measured: str
    share: str
    ok: bool = True
    is_run: bool = True

    @property
    def verdict(self) -> str:
        """One of "ok", "SHORT" (below what is asked) and "not run"; "" for what nothing is asked of."""
        if not self.is_run:
            return "not run"
        if not self.ok:
            return "SHORT"
        return "ok" if self.asked else ""


def not_run(name: str, asked: str, why: str = "") -> ScoreLine:
    """A line for what is asked and was not measured; neither ok nor SHORT. why: shown in place of the share."""
    return ScoreLine(name=name, asked=asked, measured="-", share=why, ok=False, is_run=False)


def summarize(runs: Sequence[RunScore], baseline: Sequence[RunScore] = ()) -> list[ScoreLine]:
    """Lines of all runs together: for each class of faults, then overall, then of the simple detector.

    baseline: what the simple detector made of the same runs.
    """
    lines = []
    for group in GROUPS:
        faults = [fault for run in runs for fault in run.faults if fault.group == group]
        lines += list(_of_group(group, faults))
    lines += list(_overall(runs))
    if any(run.has_faults for run in baseline):
        share = share_of([fault.top_1 for run in baseline for fault in run.faults])
        ok = share.value < MOST_OF_BASELINE
        lines.append(_share_line("simple detector: top-1", share, f"< {MOST_OF_BASELINE:.0%}", ok))
        lines.append(_count_line("simple detector: wrong nodes blamed", sum(len(r.wrong_nodes) for r in baseline)))
    return lines


def _of_group(group: str, faults: Sequence[FaultScore]) -> Iterator[ScoreLine]:
    if not faults:
        return
    yield _top_1(group, faults)
    yield _share_line(f"{group}: top-3", share_of([fault.top_3 for fault in faults]))
    yield _share_line(f"{group}: scope", share_of([fault.scope for fault in faults]))
    asked = [fault.condition for fault in faults if fault.condition is not None]
    if asked:
        yield _share_line(f"{group}: condition named", share_of(asked))
    found = [fault for fault in faults if fault.detected]
    yield ScoreLine(
        name=f"{group}: detection delay p50, p95",
        asked="",
        measured=f"{_seconds(faults, _delay, 0.5)}, {_seconds(faults, _delay, 0.95)}",
        share=f"{len(found)} of {len(faults)} detected",
    )
    if group == "slow":
        yield from _steps_until_told(faults)
        usual = [fault.usual_steps for fault in faults]
        measured = f"{quantile(usual, 0.5):.1f}, {quantile(usual, 0.95):.1f}"
        yield ScoreLine(
            name="slow: in steps as long as before, p50, p95", asked="", measured=measured, share=_soon(usual)
        )
        yield from _slow_steps_of(faults)


def _steps_until_told(faults: Sequence[FaultScore]) -> Iterator[ScoreLine]:
    """Those that made no step a tenth longer apart: how soon they are told is printed, and not asked."""
    felt = [fault.steps for fault in faults if fault.is_felt]
    hidden = [fault.steps for fault in faults if not fault.is_felt]
    if felt:
        late = quantile(felt, 0.95)
        measured = "never" if math.isinf(late) else f"{late:.1f}"
        yield ScoreLine(
            name="slow: steps until told, p95",
            asked=f"<= {ASKED_SLOW_STEPS:g}",
            measured=measured,
            share=_soon(felt),
            ok=late <= ASKED_SLOW_STEPS,
        )
    if hidden:
        measured = ", ".join("never" if math.isinf(steps) else f"{steps:.1f}" for steps in sorted(hidden))
        yield ScoreLine(name="slow, no step a tenth longer: steps", asked="", measured=measured, share=_soon(hidden))


def _soon(steps: Sequence[float]) -> str:
    return f"{sum(each <= ASKED_SLOW_STEPS for each in steps)} of {len(steps)}"


def _slow_steps_of(faults: Sequence[FaultScore]) -> Iterator[ScoreLine]:
    """The same, by who was told to be slow."""
    for words, kinds in (("as one rank", ("rank_slow",)), ("as all together", ("slow_together",))):
        told = [fault.steps for fault in faults if fault.said in kinds]
        if told:
            measured = f"{quantile(told, 0.5):.1f}, {quantile(told, 0.95):.1f}"
            yield ScoreLine(name=f"slow, told {words}: steps p50, p95", asked="", measured=measured, share=_soon(told))


def _top_1(name: str, faults: Sequence[FaultScore]) -> ScoreLine:
    share, asked = share_of([fault.top_1 for fault in faults]), ASKED_TOP_1.get(name)
    if asked is None:
        return _share_line(f"{name}: top-1", share)
    return _share_line(f"{name}: top-1", share, f">= {asked:.0%}", share.value >= asked)


def _overall(runs: Sequence[RunScore]) -> Iterator[ScoreLine]:
    faults = [fault for run in runs for fault in run.faults]
    intra = [fault for fault in faults if fault.group in INTRA_JOB]
    if intra:
        yield _top_1("intra-job", intra)
    if faults:
        yield _share_line("all: top-1", share_of([fault.top_1 for fault in faults]))
        struck = [run for run in runs if run.has_faults]
        clean = [not run.wrong_nodes for run in runs]
        nodes = sum(len(run.wrong_nodes) for run in runs)
        yield ScoreLine(
            name="wrong nodes blamed", asked="0", measured=str(nodes), share=_of(share_of(clean)), ok=not nodes
        )
        yield from page_lines(struck)
    yield from _observers(runs)
    yield from _sound(runs)
    yield from calibration_lines(runs)
    late = sum(run.out_of_time for run in runs)
    in_time = share_of([not run.out_of_time for run in runs])
    yield ScoreLine(name="runs out of time", asked="0", measured=str(late), share=_of(in_time), ok=not late)


def page_lines(runs: Sequence[RunScore]) -> Iterator[ScoreLine]:
    """How many runs with a fault had pages beyond one for each; and how many without the first words on jobs, which
    nobody could have kept back.

    Judged from ``ENOUGH_RUNS`` on, only printed before; no lines for no runs.
    """
    struck = [run for run in runs if run.has_faults]
    if not struck:
        return
    with_more = share_of([run.pages_too_many > 0 for run in struck])
    is_enough = len(struck) >= ENOUGH_RUNS
    yield ScoreLine(
        name="runs with pages beyond one per fault",
        asked=f"<= {MOST_WITH_MORE_PAGES:.0%}" if is_enough else "",
        measured=f"{with_more.value:.1%}",
        share=_of(with_more),
        ok=not is_enough or with_more.value <= MOST_WITH_MORE_PAGES,
    )
    first_words = sum(min(run.first_words, max(0, run.pages_too_many)) for run in struck)
    to_spare = share_of([run.pages_to_spare > 0 for run in struck])
    yield ScoreLine(
        name="  without those for each job struck before a fault of several had shown",
        asked="",
        measured=f"{to_spare.value:.1%}; {first_words} such pages",
        share=_of(to_spare),
    )


def _observers(runs: Sequence[RunScore]) -> Iterator[ScoreLine]:
    """Faults of those who look must not page as anything else."""
    mine = [run for run in runs if run.faults and all(fault.group == "observer" for fault in run.faults)]
    if mine:
        pages = sum(run.pages for run in mine)
        silent = share_of([not run.pages for run in mine])
        yield ScoreLine(
            name="pages for observer faults", asked="0", measured=str(pages), share=_of(silent), ok=not pages
        )


def _sound(runs: Sequence[RunScore]) -> Iterator[ScoreLine]:
    sound = [run for run in runs if not run.has_faults]
    if not sound:
        return
    pages, days = sum(run.pages for run in sound), math.fsum(run.gpu_days for run in sound)
    silent = _of(share_of([not run.pages for run in sound]))
    yield ScoreLine(name="pages without a fault", asked="0", measured=str(pages), share=silent, ok=not pages)
    if days > 0:
        bound = poisson_upper(pages) / days * 1000.0
        yield ScoreLine(
            name="pages per 1,000 GPU-days",
            asked="",
            measured=f"{pages / days * 1000.0:,.3g}, at most {bound:,.3g} (95 %)",
            share=f"{days:,.2f} GPU-days",
        )


def calibration_lines(runs: Sequence[RunScore]) -> Iterator[ScoreLine]:
    """Lines on how well told probabilities hold: judged from ``ENOUGH_TOLD`` incidents on, only printed before; none
    for none.
    """
    told = [each for run in runs for each in run.told]
    if not told:
        return
    is_enough = len(told) >= ENOUGH_TOLD
    seen = f"{len(told)} incidents" + ("" if is_enough else f", fewer than {ENOUGH_TOLD}: too few to judge")
    error, score, constant = calibration_error(told), brier(told), brier_of_constant(told)
    yield ScoreLine(
        name="calibration error",
        asked=f"<= {ASKED_CALIBRATION_ERROR:g}" if is_enough else "",
        measured=f"{error:.3f}",
        share=seen,
        ok=not is_enough or error <= ASKED_CALIBRATION_ERROR,
    )
    yield ScoreLine(
        name="Brier score",
        asked=f"< {constant:.3f}, a constant's" if is_enough else "",
        measured=f"{score:.3f} (constant {constant:.3f})",
        share=seen,
        ok=not is_enough or score < constant,
    )


def _delay(fault: FaultScore) -> float:
    return fault.delay_s


def _seconds(faults: Sequence[FaultScore], of: Callable[[FaultScore], float], q: float) -> str:
    value = quantile([of(fault) for fault in faults], q)
    return "never" if math.isinf(value) else f"{value:.1f} s"


def _share_line(name: str, share: Share, asked: str = "", ok: bool = True) -> ScoreLine:
    return ScoreLine(name=name, asked=asked, measured=f"{share.value:.1%}", share=_with_interval(share), ok=ok)


def _count_line(name: str, count: int) -> ScoreLine:
    return ScoreLine(name=name, asked="", measured=str(count), share="")


def _of(share: Share) -> str:
    return f"{share.k} of {share.n}"


def _with_interval(share: Share) -> str:
    low, high = share.interval
    return f"{_of(share)} ({low:.0%} to {high:.0%})"
