"""What a table of expectations demands of one JSON document of ``whichrank diagnose``: each check tells what is wrong.

The format is that of ``EXPECT.md`` of the public reports, with ``silent: true`` beside it: no class may be told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]
#: Fields whose name says that their value is somebody: who is missing, suspected, waited for, at the other end.
WHO = re.compile(
    r"missing|suspect|guilt|blam|culprit|odd|differ|diverg|absent|silent|waited|waits?_for|awaited|peer|remote|who|lost|"
    r"victim_of|points_to",
    re.IGNORECASE,
)
#: What only quotes: a name in it is not told by us.
QUOTES = frozenset(
    {"consequences", "precursors", "confirmations", "episodes", "text", "file", "files", "where", "lines", "line",
     "first_line", "progress", "exception"}
)  # fmt: skip
NUMBERED = re.compile(
    r"\b(?:rank|task|worker|process|peer|member)s?\b[\s:#=]*[\[({]?"
    r"(?P<run>\d+(?:\s*-\s*\d+)?(?:\s*(?:,|and|&)\s*\d+(?:\s*-\s*\d+)?)*)",
    re.IGNORECASE,
)
RANGE = re.compile(r"(?<![\d.])(\d{1,6})(?:\s*-\s*(\d{1,6}))?(?![\d.])")
WIDEST = 100_000


def ranks_of(value: Any) -> set[int]:
    """Ranks in a value: 3, [1, 2], "0-2,7", {"ranks": "3"}."""
    if isinstance(value, bool) or value is None:
        return set()
    if isinstance(value, int):
        return {value}
    if isinstance(value, Mapping):
        return ranks_of(value.get("rank", value.get("ranks", value.get("task"))))
    if isinstance(value, str):
        found: set[int] = set()
        for low, high in RANGE.findall(value[:400]):
            if int(high or low) - int(low) <= WIDEST:
                found.update(range(int(low), int(high or low) + 1))
        return found
    return {rank for each in value for rank in ranks_of(each)} if isinstance(value, Sequence) else set()


def fields(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each (name, value) below a document that is not a quotation."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in QUOTES:
                yield key, inner
                yield from fields(inner, key)
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, Mapping | list):
                yield from fields(inner, name)
            else:
                yield name, inner


def sentences(document: Document) -> str:
    advice = document.get("advice") or {}
    told = [document.get("why"), document.get("summary"), advice.get("text"), *(document.get("warnings") or ())]
    return "\n".join(str(each) for each in told if each)


def names_ranks(document: Document, wanted: Sequence[int]) -> bool:
    asked = set(wanted)
    primary = document.get("primary") or {}
    if asked in (ranks_of(primary.get("rank")), ranks_of(primary.get("ranks"))):
        return True
    if any(asked <= ranks_of(document.get(name)) for name in ("rank", "ranks", "task")):
        return True
    if any(WHO.search(name) and asked <= ranks_of(value) for name, value in fields(document)):
        return True
    said = {rank for run in NUMBERED.findall(sentences(document)) for rank in ranks_of(run)}
    return asked <= said


def names_one(document: Document, wanted: Sequence[str], kind: str) -> bool:
    """Whether a field, or a sentence, holds one of these names; with a port behind it is the same name."""
    said = sentences(document)
    for name in map(str, wanted):
        if re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", said):
            return True
        whole = re.compile(rf"{re.escape(name)}(?:[<:./].*)?")
        for key, value in fields(document):
            if re.search(kind, key, re.IGNORECASE) or WHO.search(key):
                values = value if isinstance(value, list) else [value]
                if any(whole.fullmatch(str(one)) for one in values if isinstance(one, str | int)):
                    return True
    return False


def _fits(rule: Mapping[str, Sequence[str]], text: str, *, whole: bool = False) -> bool:
    find: Callable[..., Any] = re.fullmatch if whole else re.search

    def any_of(patterns: Sequence[str]) -> bool:
        return any(find(pattern, text, re.IGNORECASE | re.DOTALL) for pattern in patterns)

    wanted, unwanted = rule.get("any", ()), rule.get("not", ())
    return not (wanted and not any_of(wanted)) and not any_of(unwanted)


def _shown(document: Document) -> str:
    primary = document.get("primary") or {}
    parts = [primary, *(document.get("precursors") or ()), *(document.get("confirmations") or ())]
    return "\n".join([*(str(part.get("text") or "") for part in parts), sentences(document)])


def _job_log_rule(document: Document, name: str, rule: Any) -> str:
    """What is wrong with one assertion about a job's log; "" if it holds."""
    primary, advice = document.get("primary") or {}, document.get("advice") or {}
    decides = f"{primary.get('exception') or ''}\n{primary.get('text') or ''}"
    word = document.get("class")
    steps = [rule] if isinstance(rule, int) else rule
    checks: dict[str, tuple[Callable[[], bool], str]] = {
        "silent": (lambda: (word is None) is rule, f"class is {word}"),
        "class": (lambda: word is not None and _fits(rule, word, whole=True), f"class is {word}"),
        "action": (
            lambda: (
                (not rule.get("any") or advice.get("action") in rule["any"])
                and advice.get("action") not in rule.get("not", ())
            ),
            f"action is {advice.get('action')}",
        ),
        "restart": (lambda: advice.get("restart") in rule, f"restart unchanged is {advice.get('restart')}"),
        "is_cause": (lambda: bool(document.get("is_cause")) is rule, f"is_cause is {document.get('is_cause')}"),
        "confidence_max": (
            lambda: (document.get("confidence") or 0) <= rule,
            f"confidence is {document.get('confidence')}",
        ),
        "primary": (lambda: _fits(rule, decides), f"decides by {decides.strip()[:60]!r}"),
        "says": (lambda: _fits(rule, sentences(document)), f"says {sentences(document)[:80]!r}"),
        "shows": (lambda: _fits({"any": rule}, _shown(document)), f"does not show {rule}"),
        "names_rank": (lambda: names_ranks(document, rule), f"does not name rank {rule} (has {primary.get('rank')})"),
        "names_node": (lambda: names_one(document, rule, "node|host"), f"does not name node {rule}"),
        "names_device": (lambda: names_one(document, rule, "device|gpu"), f"does not name device {rule}"),
        "not_node": (
            lambda: primary.get("node") not in rule and document.get("node") not in rule,
            f"blames node {primary.get('node')}",
        ),
        "not_rank": (lambda: not ranks_of(primary.get("rank")) & set(rule), f"blames rank {primary.get('rank')}"),
        "step": (
            lambda: ((document.get("progress") or {}).get("last") or {}).get("step") in steps,
            f"last step is not {rule}",
        ),
    }
    if name == "any_of":
        tries = [job_log(document, one) for one in rule]
        return "" if not all(tries) else " / ".join("; ".join(one) for one in tries)
    if name not in checks:
        return f"unknown assertion {name}"
    holds, problem = checks[name]
    return "" if holds() else problem


def job_log(document: Document, wanted: Mapping[str, Any]) -> list[str]:
    problems = [_job_log_rule(document, name, rule) for name, rule in wanted.items()]
    return [problem for problem in problems if problem]


def row_fits(row: Mapping[str, Any], rule: Mapping[str, Any]) -> bool:
    """Whether an event or conclusion of a kernel log is one that a rule describes."""

    def facts(*names: str) -> str:
        return " ".join(str(row.get(name)) for name in names)

    for name, value in rule.items():
        said = row.get(name)
        if name == "about":
            named = facts("event", "rule", "also", "meaning", "component", "device_kind", "facts")
            holds = re.search(value, named, re.IGNORECASE) is not None
        elif name == "told":
            holds = re.search(value, facts("event", "rule", "component", "facts", "domain"), re.IGNORECASE) is not None
        elif name == "device":
            holds = re.fullmatch(value, str(said or ""), re.IGNORECASE) is not None
        elif name == "code":
            codes = {str(said)} | (
                {str(each) for each in (row.get("facts") or {}).values()} if "code_in_facts" in rule else set()
            )
            holds = bool(codes & set(value))
        elif name == "code_in_facts":
            holds = True
        elif isinstance(value, list):
            holds = said in value
        elif isinstance(value, str):
            holds = re.search(value, str(said or ""), re.IGNORECASE) is not None
        else:
            holds = said == value
        if not holds:
            return False
    return True


def kernel_log(document: Document, wanted: Mapping[str, Any]) -> list[str]:
    events = list(document.get("events") or ())
    rows = [*events, *(document.get("conclusions") or ())]
    problems: list[str] = []
    for name, rule in wanted.items():
        if name == "events":
            seen = sorted({f"{row.get('event') or row.get('rule')} ({row.get('component')})" for row in rows})
            problems += [
                f"nothing fits {str(alternatives)[:140]}; has {', '.join(seen)[:160] or 'nothing'}"
                for alternatives in rule
                if not any(row_fits(row, one) for one in alternatives for row in rows)
            ]
        elif name == "none":
            bad = [row for one in rule for row in rows if row_fits(row, one)]
            problems += [f"{row.get('event') or row.get('rule')} for {row.get('device')!r}" for row in bad[:1]]
        elif name == "rows_max":
            count = sum(row_fits(event, rule["of"]) for event in events)
            problems += [f"{count} rows for one thing"] if count > rule["n"] else []
        elif name == "silent":
            problems += [f"{len(rows)} rows"] if bool(rows) is rule else []
        else:
            problems.append(f"unknown assertion {name}")
    return problems


def flight_recorder(document: Document, wanted: Mapping[str, Any]) -> list[str]:
    suspects = {suspect.get("rank") for suspect in document.get("suspects") or ()}
    action = (document.get("advice") or {}).get("action")
    problems: list[str] = []
    for name, rule in wanted.items():
        if name in ("kind", "verdict"):
            problems += [f"{name} is {document.get(name)}"] if document.get(name) not in rule else []
        elif name == "suspects":
            problems += [f"suspects are {sorted(map(str, suspects))}"] if suspects != set(rule) else []
        elif name == "action":
            problems += [f"action is {action}"] if action not in rule["any"] else []
        else:
            problems.append(f"unknown assertion {name}")
    return problems


CHECKS: Mapping[str, Callable[[Document, Mapping[str, Any]], list[str]]] = {
    "job-log": job_log,
    "kernel-log": kernel_log,
    "flight-recorder": flight_recorder,
}
