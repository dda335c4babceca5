"""Incident documents of any origin, read into ``IncidentDocument``: on a topic, in a file, in a row of state.

Of this release or another one: what is not there, or is of another type, is unknown, and never an error. Fields that
only a later release knows are kept as JSON text. Pure, standard library only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from .evidence_facts import FACT, read_fact
from .incident import SCHEMA_VERSION
from .incident_document import (
    CalmAdvice,
    CodePlace,
    CountedBy,
    Coverage,
    EvidenceRow,
    FirstBadPlace,
    HandlingWord,
    IncidentAdvice,
    IncidentCause,
    IncidentCost,
    IncidentDocument,
    IncidentHistory,
    IncidentHold,
    IncidentLabel,
    IncidentTimes,
    JobReference,
    JobShare,
    Retry,
    RuledOutEntry,
    SuspectEntry,
    Victims,
    word_of,
)
from .printable import safe_incident_id
from .ring_layout import cut_text
from .trust import IdBy, Trust
from .vocabulary import Action, Bucket, Change, IncidentState, Kind, Scope, Severity

#: More than any of ours has, and little enough for people, pages and chats. A list of ranks is the longest text.
MAX_TEXT, MAX_RANKS, MAX_ROWS = 16 << 10, 256 << 10, 2_000
#: The end of the year 9999.
_LAST_S = 253_402_300_800.0

Word = TypeVar("Word", bound=Enum)


def read_incident(document: object) -> IncidentDocument:
    """An incident from any JSON data; what is absent or of another type is as where nothing is known. Never raises.

    An id goes into names of files, links and tags: one of another form than ids have is replaced by one made of it.
    Texts and lists of more than an incident can have are cut.
    """
    of = _mapping(document)
    return IncidentDocument(
        schema=_whole(of, "schema") or SCHEMA_VERSION,
        id=safe_incident_id(_text(of, "id") or ""),
        revision=_whole(of, "revision") or 0,
        change=_word(of, "change", Change) or "",
        state=_word(of, "state", IncidentState) or "",
        merged_into=None if (merged := _text(of, "merged_into")) is None else safe_incident_id(merged),
        severity=_word(of, "severity", Severity) or "",
        cluster=_text(of, "cluster"),
        job=read_job_reference(of.get("job")),
        jobs=tuple(map(_read_share, _objects(of, "jobs"))),
        bucket=_word(of, "bucket", Bucket) or "",
        kind=_word(of, "kind", Kind) or "",
        scope=_word(of, "scope", Scope),
        suspects=tuple(map(read_suspect, _objects(of, "suspects"))),
        victims=read_victims(of.get("victims")),
        coverage=read_coverage(of.get("coverage")),
        first_bad=read_first_bad(of.get("first_bad")),
        times=read_times(of.get("times")),
        evidence=tuple(map(read_evidence, _objects(of, "evidence"))),
        ruled_out=tuple(map(read_ruled_out, _objects(of, "ruled_out"))),
        history=_read_history(_mapping(of.get("history"))),
        confidence=_number(of, "confidence"),
        advice=_read_advice(of.get("advice")),
        cost=read_cost(of.get("cost")),
        cause=_read_cause(of.get("cause")),
        hold=read_hold(of.get("hold")),
        label=read_label(of.get("label")),
        extra=_extra(of, _INCIDENT_KEYS),
    )


def read_job_reference(value: object) -> JobReference:
    """The job from the field ``job`` of an incident document; what is absent or wrong is None."""
    of = _mapping(value)
    texts = {name: _text(of, name) for name in _JOB_KEYS if name != "id_by"}
    return JobReference(**texts, id_by=_word(of, "id_by", IdBy), extra=_extra(of, _JOB_KEYS))


def _read_share(of: Mapping[str, object]) -> JobShare:
    victims = of.get("victims")
    return JobShare(
        id=_text(of, "id"),
        attempt=_text(of, "attempt"),
        role=_text(of, "role"),
        victims=read_victims(victims) if isinstance(victims, Mapping) and victims else None,
        cost=read_cost(of.get("cost")),
        extra=_extra(of, ("id", "attempt", "role", "victims", "cost")),
    )


def read_suspect(value: object) -> SuspectEntry:
    """A suspect from a row of the field ``suspects`` of an incident document; what is absent or wrong is None."""
    of = _mapping(value)
    where = of.get("where")
    return SuspectEntry(
        scope=_word(of, "scope", Scope),
        id=_text(of, "id") or "",
        rank=_whole(of, "rank"),
        node=_text(of, "node"),
        gpu=_text(of, "gpu"),
        pid=_whole(of, "pid"),
        where=_read_place(where) if isinstance(where, Mapping) else None,
        probability=_number(of, "probability"),
        ranks=_text(of, "ranks"),
        extra=_extra(of, _SUSPECT_KEYS),
    )


def _read_place(of: Mapping[str, object]) -> CodePlace:
    return CodePlace(
        file=_text(of, "file"),
        line=_whole(of, "line"),
        phase=_text(of, "phase"),
        extra=_extra(of, ("file", "line", "phase")),
    )


def read_victims(value: object) -> Victims:
    """The victims from the field ``victims`` of an incident document; what is absent or wrong is None."""
    of = _mapping(value)
    return Victims(count=_whole(of, "count"), ranks=_text(of, "ranks"), extra=_extra(of, ("count", "ranks")))


def read_coverage(value: object) -> Coverage:
    """The coverage from the field ``coverage`` of an incident document; what is absent or wrong is None."""
    of = _mapping(value)
    return Coverage(
        ranks_seen=_whole(of, "ranks_seen"),
        ranks_expected=_whole(of, "ranks_expected"),
        extra=_extra(of, ("ranks_seen", "ranks_expected")),
    )


def read_first_bad(value: object) -> FirstBadPlace:
    """The first bad place from the field ``first_bad`` of an incident document; what is absent or wrong is None."""
    of = _mapping(value)
    return FirstBadPlace(
        step=_whole(of, "step"),
        group=_text(of, "group"),
        sequence=_whole(of, "sequence"),
        operation=_text(of, "operation"),
        extra=_extra(of, ("step", "group", "sequence", "operation")),
    )


def read_times(value: object) -> IncidentTimes:
    """The times from the field ``times`` of an incident document; what is absent or wrong is None, the onset 0.0."""
    of = _mapping(value)
    return IncidentTimes(
        onset_s=_time_s(of, "onset") or 0.0,
        detected_s=_time_s(of, "detected"),
        attributed_s=_time_s(of, "attributed"),
        resolved_s=_time_s(of, "resolved"),
        extra=_extra(of, ("onset", "detected", "attributed", "resolved")),
    )


def read_evidence(value: object) -> EvidenceRow:
    """A row of the field ``evidence`` of an incident document; without a fact where it carries none.

    (``processors/older_sentences.py`` reads on.)
    """
    of = _mapping(value)
    told = of.get("value")
    return EvidenceRow(
        signal=_text(of, "signal") or "",
        source=_text(of, "source") or "",
        time_s=_number(of, "time"),
        value=told if isinstance(told, str | int) else _number(of, "value"),
        shows=_text(of, "shows") or "",
        fact=read_fact(of),
        condition=_text(of, "condition") or "",
        trust=_word(of, "trust", Trust),
        extra=_extra(of, _EVIDENCE_KEYS),
    )


def read_ruled_out(value: object) -> RuledOutEntry:
    """A row of the field ``ruled_out`` of an incident document; what is absent or wrong is "" or None."""
    of = _mapping(value)
    return RuledOutEntry(
        who=_text(of, "who") or "",
        looks_guilty=_text(of, "looks_guilty") or "",
        because=_text(of, "because") or "",
        ranks=_text(of, "ranks"),
        fact=read_fact(of),
        condition=_text(of, "condition") or "",
        extra=_extra(of, _RULED_OUT_KEYS),
    )


def _read_history(of: Mapping[str, object]) -> IncidentHistory:
    change = _text(of, "last_change")
    known = ("suspect_incidents", "last_change") if change is not None or of.get("last_change") is None else ()
    return IncidentHistory(
        suspect_incidents=_whole(of, "suspect_incidents"),
        last_change=change,
        extra=_extra(of, known or ("suspect_incidents",)),
    )


def _read_advice(value: object) -> IncidentAdvice | None:
    if not isinstance(value, Mapping):
        return None
    retry = _mapping(value.get("retry"))
    number, of = _whole(retry, "number"), _whole(retry, "of")
    calm = value.get("if_seldom")
    return IncidentAdvice(
        action=_word(value, "action", Action),
        by=_text(value, "by"),
        text=_text(value, "text"),
        retry=None if number is None or of is None else Retry(number=number, of=of),
        if_seldom=CalmAdvice(action=_word(calm, "action", Action), by=_text(calm, "by"))
        if isinstance(calm, Mapping)
        else None,
        extra=_extra(value, ("action", "by", "text", "retry", "if_seldom")),
    )


def read_cost(value: object) -> IncidentCost | None:
    """The cost from the field ``cost`` of an incident document; None where nothing is told."""
    if not isinstance(value, Mapping) or not value:
        return None
    return IncidentCost(
        gpu_seconds=_number(value, "gpu_seconds"),
        charged_to=safe_incident_id(_text(value, "charged_to") or ""),
        extra=_extra(value, ("gpu_seconds", "charged_to")),
    )


def _read_cause(value: object) -> IncidentCause | None:
    if not isinstance(value, Mapping):
        return None
    return IncidentCause(
        condition=_text(value, "condition"),
        entity=_text(value, "entity"),
        device_kind=_text(value, "device_kind"),
        device=_text(value, "device"),
        since_s=_number(value, "since"),
        domain=_text(value, "domain"),
        trust=_word(value, "trust", Trust),
        counted_by=_word(value, "counted_by", CountedBy),
        extra=_extra(value, ("condition", "entity", "device_kind", "device", "since", "domain", "trust", "counted_by")),
    )


def read_hold(value: object) -> IncidentHold | None:
    """What a page waits for, from the field ``hold`` of an incident document; None where it does not wait."""
    if not isinstance(value, Mapping):
        return None
    return IncidentHold(
        until_s=_number(value, "until"),
        because=_text(value, "because"),
        extra=_extra(value, ("until", "because")),
    )


def read_label(value: object) -> IncidentLabel | None:
    """What a person has said, from the field ``label`` of an incident document; None where nobody has said anything."""
    if not isinstance(value, Mapping):
        return None
    wrong = value.get("wrong")
    return IncidentLabel(
        cause=_text(value, "cause"),
        wrong=wrong if isinstance(wrong, bool) else None,
        by=_text(value, "by"),
        time_s=_number(value, "time"),
        acknowledged=_read_handling(value.get("acknowledged")),
        closed=_read_handling(value.get("closed")),
        keys=tuple(str(name) for name in value if name in _LABEL_KEYS),
        extra=_extra(value, _LABEL_KEYS),
    )


def _read_handling(value: object) -> HandlingWord | None:
    if not isinstance(value, Mapping):
        return None
    return HandlingWord(
        by=_text(value, "by"),
        time_s=_number(value, "time"),
        because=_text(value, "because"),
        extra=_extra(value, ("by", "time", "because")),
    )


_JOB_KEYS = ("run", "id", "name", "attempt", "owner", "now", "owner_id", "id_by")
_SUSPECT_KEYS = ("scope", "id", "rank", "node", "gpu", "pid", "where", "probability", "ranks")
_EVIDENCE_KEYS = ("signal", "source", "time", "value", "shows", FACT, "condition", "trust")
_RULED_OUT_KEYS = ("who", "looks_guilty", "because", "ranks", FACT, "condition")
_LABEL_KEYS = ("cause", "wrong", "by", "time", "acknowledged", "closed")
_INCIDENT_KEYS = tuple(name for name in IncidentDocument.__slots__ if name != "extra")


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _objects(of: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    value = of.get(name)
    return [each for each in value[:MAX_ROWS] if isinstance(each, Mapping)] if isinstance(value, list | tuple) else []


def _text(of: Mapping[str, object], name: str) -> str | None:
    """A number is taken as it is written: other people's job ids and attempts are some."""
    value = of.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        return None
    most = MAX_RANKS if name == "ranks" else MAX_TEXT
    return word_of(value if len(value) <= most else cut_text(value, most))


def _whole(of: Mapping[str, object], name: str) -> int | None:
    """Also as some JSON has it, where all numbers are floats: 12.0."""
    value = of.get(name)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _time_s(of: Mapping[str, object], name: str) -> float | None:
    """Unix seconds that every form of a date can hold; else it is no time."""
    value = _number(of, name)
    return value if value is not None and 0 <= value < _LAST_S else None


def _number(of: Mapping[str, object], name: str) -> float | None:
    value = of.get(name)
    if isinstance(value, bool) or not isinstance(value, float | int):
        return None
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _word(of: Mapping[str, object], name: str, words: type[Word]) -> Word | str | None:
    text = _text(of, name)
    try:
        return words(text)
    except ValueError:
        return text


def _extra(of: Mapping[str, object], known: tuple[str, ...]) -> str:
    """The fields that this release does not know, as JSON text; "" none. What is no JSON is left out."""
    rest = {name: value for name, value in of.items() if name not in known}
    if not rest:
        return ""
    try:
        return json.dumps(rest)
    except (TypeError, ValueError, RecursionError):
        return ""
