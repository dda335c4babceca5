"""The lines of the table that loops are held to, from the facts of their runs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tests.outside.judging import RIGHT, Facts, problems_of
from tests.outside.outcomes import KNOWN_S
from tests.outside.plan import KINDS
from tests.outside.public_loops import PUBLIC
from tests.outside.table import Line

#: So much later than the formula has it a page may come.
LATE_S = 3.0
#: Fewer runs say little about a share of 97 %; so many kinds, half of them other people's.
LEAST_RUNS, LEAST_KINDS, LEAST_PUBLIC, LEAST_ON_DEVICE = 180, 20, 10, 6
SOURCES = {kind.name: kind.source for kind in KINDS}


def lines(facts: Sequence[Facts]) -> list[Line]:
    clean = [each for each in facts if not each.fault]
    faulty = [each for each in facts if each.fault]
    found = [
        Line.count("loops", len(facts), LEAST_RUNS),
        _kinds("kinds of loops", facts, ("own", "public"), LEAST_KINDS),
        _kinds("public scripts", facts, ("public",), LEAST_PUBLIC),
        _kinds("kinds on the test process group", facts, ("device",), LEAST_ON_DEVICE),
        _line("clean loops without a page or ticket", clean, 1.0),
        _line("loops with a fault: right kind, rank, line, one incident", faulty, 0.97),
    ]
    found += [_line(f"of which {fault}", [f for f in faulty if f.fault == fault], 0.90) for fault in RIGHT]
    for source in ("own", "public", "device"):
        found.append(_line(f"of which {source} loops", [f for f in faulty if SOURCES.get(f.kind) == source], 0.97))
    for kind in PUBLIC:
        if not any(each.kind == kind.name for each in facts):
            found.append(Line.skipped(f"public loop {kind.name}", "no run of it: its snapshot and packages are needed"))
    standing = [each for each in faulty if each.stands]
    seven = [each for each in standing if each.formula_s is not None and each.formula_s <= KNOWN_S]
    found.append(Line.of("stands still: said at all", sum(bool(f.incidents) for f in standing), len(standing), 1.0))
    found.append(Line.of(f"stands still where the job's formula gives {KNOWN_S:.0f} s", len(seven), len(standing), 0.5))
    paged = [each for each in standing if each.fault != "killed" or each.paged_s is not None]
    for words, group in (
        ("7 s", [each for each in paged if each in seven]),
        ("more", [each for each in paged if each not in seven]),
    ):
        late = _late(group, lambda f: f.paged_s)
        text = f"stands still, formula {words}: page within {LATE_S:.0f} s of it"
        found.append(Line.of(text, len(group) - len(late), len(group), 0.95, _delays(group)))
    return found


def _line(asked: str, facts: Sequence[Facts], share: float) -> Line:
    return Line.of(asked, sum(not problems_of(each) for each in facts), len(facts), share)


def _kinds(asked: str, facts: Iterable[Facts], sources: Sequence[str], least: int) -> Line:
    return Line.count(asked, len({each.kind for each in facts if SOURCES.get(each.kind) in sources}), least)


def _late(facts: Iterable[Facts], after: Callable[[Facts], float | None]) -> list[Facts]:
    return [
        each for each in facts if (s := after(each)) is None or each.formula_s is None or s > each.formula_s + LATE_S
    ]


def _delays(facts: Iterable[Facts]) -> str:
    """Beyond the formula's own value, and both of the latest one."""
    found = sorted(
        (each.paged_s - each.formula_s, each.formula_s, each.paged_s)
        for each in facts
        if each.paged_s is not None and each.formula_s is not None
    )
    if not found:
        return ""
    middle, p95 = found[len(found) // 2], found[min(len(found) - 1, int(0.95 * len(found)))]
    last = found[-1]
    return (
        f"after it: median {middle[0]:.1f} s, p95 {p95[0]:.1f} s, longest {last[0]:.1f} s (formula {last[1]:.1f} s, "
        f"paged {last[2]:.1f} s)"
    )
