"""The facts of an incident, apart from its sentences: what stays the same when only the code's form changes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

#: Fields of the document that are facts as a whole.
_PLAIN = (
    "id", "revision", "change", "state", "merged_into", "severity", "bucket", "kind", "scope", "suspects", "victims",
    "coverage", "first_bad", "times", "history", "confidence", "cause", "cost",
)  # fmt: skip
#: Of these objects and lists of objects only what is named; the rest is sentences.
_PARTS = {
    "job": ("id", "attempt", "now"),
    "jobs": ("id", "attempt", "role", "victims", "cost"),
    "evidence": ("signal", "source", "time"),
    "ruled_out": ("who", "ranks"),
    "advice": ("action", "by", "retry"),
}


def facts_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Ids, kinds, suspects, times, severities of one revision; no sentence."""
    facts = {name: document[name] for name in _PLAIN if document.get(name) is not None}
    for name, wanted in _PARTS.items():
        part = document.get(name)
        if isinstance(part, Mapping):
            facts[name] = _only(part, wanted)
        elif part:
            facts[name] = [_only(each, wanted) for each in part]
    return facts


def _only(part: Mapping[str, Any], wanted: Iterable[str]) -> dict[str, Any]:
    return {name: part[name] for name in wanted if part.get(name) is not None}


def texts_of(document: Mapping[str, Any]) -> list[str]:
    """Every string of the document that ``facts_of`` leaves out, in the order in which it stands there."""
    facts = set(_strings(facts_of(document)))
    return [text for text in _strings(document) if text not in facts]


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def line_of(name: str, revisions: Iterable[Mapping[str, Any]]) -> str:
    """One golden line of a run: all its revisions. name: of the run."""
    told = {"name": name, "revisions": [facts_of(document) for document in revisions]}
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def first_difference(before: object, now: object, place: str = "") -> str:
    """Where two golden values part, "" where they do not: ``revisions[2].times.detected: 1.0, now 2.0``."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in sorted({*before, *now}):
            if found := first_difference(before.get(name), now.get(name), f"{place}.{name}".lstrip(".")):
                return found
        return ""
    if isinstance(before, list) and isinstance(now, list):
        for index, (one, other) in enumerate(zip(before, now, strict=False)):
            if found := first_difference(one, other, f"{place}[{index}]"):
                return found
        return "" if len(before) == len(now) else f"{place}: {len(before)} of them, now {len(now)}"
    return "" if before == now else f"{place}: {_short(before)}, now {_short(now)}"


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:197]}..."
