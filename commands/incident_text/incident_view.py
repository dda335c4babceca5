"""An incident as facts and finished sentences: who, what, since when, why, who only looks guilty, cost, advice. Pure.

``incident_view`` is what all that shows an incident prints from: the panel, the report's page, a ticket's text, a
notice, lines of a log and of a terminal. How it is laid out, and what is left out, is the printers' own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...telemetry.incident_document import (
    CodePlace,
    CountedBy,
    Coverage,
    FirstBadPlace,
    IncidentCause,
    IncidentDocument,
    IncidentTimes,
    JobReference,
    RuledOutEntry,
    SuspectEntry,
    Victims,
    word_of,
)
from ...telemetry.printable import printable as one_line
from ...telemetry.ring_layout import format_ranks
from ...telemetry.told_ranks import read_ranks
from ...telemetry.vocabulary import Kind, Phase
from ..run_folder.labels import handling_words, label_words

#: What each kind says of its suspect, in a sentence; the suspect comes first.
SENTENCES: dict[str, str] = {
    Kind.RANK_DIED: "died",
    Kind.RANK_RAISED: "raised an exception",
    Kind.RANK_STOPPED: "is stopped (process state T)",
    Kind.RANK_NOT_ENTERED: "does not come to a collective in which the others wait",
    Kind.RANK_NEVER_JOINED: "never joined the job",
    Kind.RANK_SLOW: "is slower than the others",
    Kind.DESYNC: "calls another operation than the others",
    Kind.DEADLOCK: "ranks take groups in opposite order",
    Kind.COLLECTIVE_STALLED: "a collective that all are in does not end",
    Kind.NUMERIC_FIRST_RANK: "had the first bad number: NaN, infinite or exploded",
    Kind.NUMERIC_ALL: "all ranks have bad numbers: NaN, infinite or exploded",
    Kind.SLOW_TOGETHER: "all ranks became slower together",
    Kind.PLANNED_STOP: "the job was asked to stop",
    Kind.INPUT_SILENT: "no telemetry arrives",
    Kind.AGENT_SILENT: "the whichrank of a node is gone or silent, its ranks are not visible",
    Kind.NODE_LOST: "is gone, with its ranks",
    Kind.CHECKPOINT_FAILED: "a checkpoint was not written",
    Kind.CHECKPOINT_UNFINISHED: "a checkpoint is being written for far longer than before",
    Kind.EMERGENCY_SAVE_MISSED: "a save before the end was asked for, and not all ranks made it",
}
#: Of a job that burdens a service: how that is known.
_COUNTED_BY: dict[str | None, str] = {
    CountedBy.SERVER: "by what the server counts of each job",
    CountedBy.CLIENTS: "by what the jobs' own nodes count; the server does not count by job",
}
#: ``[127.0.0.1]:51592`` in an error of gloo.
_PORT = re.compile(r"\](:\d+)")
#: The same where nobody is named.
SENTENCES_OF_NOBODY: dict[str, str] = {
    Kind.RANK_NOT_ENTERED: "ranks wait in a collective for others that cannot be seen",
}
#: And where none is in a collective.
ALL_STAND = "all ranks stand still, and none waits in a collective"
NOBODY = "nobody in particular"
#: More suspects are not named one by one, and of their ranks so much is said.
MOST_ONE_BY_ONE, MOST_CHARS_OF_RANKS = 4, 80
#: Asks for the picture form of a character; terminals disagree on its width, and lines of a box would not end alike.
EMOJI_SELECTOR = "\ufe0f"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectRow:
    """One suspect. who: in words; where: in its program, "" not known. probability: 0 to 1, None not told."""

    id: str
    rank: int | None
    who: str
    where: str
    probability: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyRow:
    """A row of evidence. time_s: Unix seconds, None not known. seen_in: the source, and what was measured there."""

    time_s: float | None
    shows: str
    seen_in: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentView:
    """who: "" where nobody is suspected. what: goes on after who. place: of the first suspect of whom it is known.

    because: the condition that explains it, "" none. cleared: who only looks guilty, and why not, a line each.
    advice_action, advice_text: "" without advice. people_say, handling: "" where nobody has said anything; said_s:
    when, Unix seconds. cost_gpu_s: GPU-seconds, None while nothing is known. Texts of jobs may hold anything: who
    prints them makes them ``printable``.
    """

    id: str
    revision: int
    change: str
    state: str
    severity: str
    bucket: str
    kind: str
    merged_into: str
    cluster: str
    job: JobReference
    job_count: int
    who: str
    what: str
    place: str
    because: str
    cause: IncidentCause | None
    suspects: tuple[SuspectRow, ...]
    times: IncidentTimes
    first_bad: FirstBadPlace
    victims: Victims
    coverage: Coverage
    why: tuple[WhyRow, ...]
    cleared: tuple[str, ...]
    advice_action: str
    advice_text: str
    confidence: float | None
    cost_gpu_s: float | None
    people_say: str
    handling: str
    said_s: float | None

    @property
    def who_or_nobody(self) -> str:
        """``who``, or words for nobody where nobody is suspected."""
        return self.who or NOBODY

    @property
    def verdict(self) -> str:
        """Who and what: ``rank 2 (pid 4711) died``."""
        return " ".join(filter(None, (self.who, self.what)))

    @property
    def headline(self) -> str:
        """One line: who, what, where, and because of what."""
        where = f"; it is {self.place}" if self.place else ""
        return self.verdict + where + (f"; because of {self.because}" if self.because else "")

    @property
    def job_name(self) -> str:
        """What people call the job, else its id; "" where it has neither."""
        return self.job.name or self.job.id or ""

    @property
    def seen_after_s(self) -> float | None:
        """Seconds from the onset until the incident was detected; None where one of them is not known."""
        onset_s, detected_s = self.times.onset_s, self.times.detected_s
        return max(0.0, detected_s - onset_s) if onset_s and detected_s else None

    @property
    def victim_words(self) -> str:
        """How many ranks wait or fell with it, and which: ``3: ranks 0-2``; "" for none."""
        count = self.victims.count
        return f"{count}: rank{'s' if count != 1 else ''} {self.victims.ranks}" if count else ""

    @property
    def seen_words(self) -> str:
        """How much of the job was seen: ``7 of 8 ranks``; "" where it is not known."""
        seen = self.coverage.ranks_seen
        return "" if seen is None else f"{seen} of {self.coverage.ranks_expected} ranks"

    @property
    def confidence_text(self) -> str:
        """The confidence with two digits; "" where it is not told."""
        return "" if self.confidence is None else f"{self.confidence:.2f}"

    def job_facts(self, *names: str) -> str:
        """Those of the job's fields of these names that are known: ``name train.py, id 4711``."""
        return ", ".join(f"{name} {value}" for name in names if (value := getattr(self.job, name)))

    def first_bad_facts(self, *names: str) -> str:
        """Those of the first bad place's fields of these names that are known: ``step 7, operation all_reduce``."""
        told = ((name, getattr(self.first_bad, name)) for name in names)
        return ", ".join(f"{name} {value}" for name, value in told if value is not None)


def incident_view(incident: IncidentDocument) -> IncidentView:
    """All that is shown of a revision, as facts and finished sentences."""
    advice, label, cost = incident.advice, incident.label, incident.cost
    return IncidentView(
        id=incident.id,
        revision=incident.revision,
        change=word_of(incident.change),
        state=word_of(incident.state),
        severity=word_of(incident.severity),
        bucket=word_of(incident.bucket),
        kind=word_of(incident.kind),
        merged_into=incident.merged_into or "",
        cluster=incident.cluster or "",
        job=incident.job,
        job_count=len(incident.jobs),
        who=describe_suspects(incident.suspects),
        what=describe_kind(incident),
        place=_place_of_first(incident.suspects),
        because=_cause_words(incident.cause),
        cause=incident.cause,
        suspects=tuple(
            SuspectRow(
                id=each.id,
                rank=each.rank,
                who=describe_suspects((each,)),
                where=_where_words(each.where),
                probability=each.probability,
            )
            for each in incident.suspects
        ),
        times=incident.times,
        first_bad=incident.first_bad,
        victims=incident.victims,
        coverage=incident.coverage,
        why=tuple(
            WhyRow(
                time_s=row.time_s,
                shows=row.shows or str("" if row.value is None else row.value),
                seen_in=f"{row.source}: {row.signal}",
            )
            for row in incident.evidence
        ),
        cleared=tuple(cleared_words(incident.ruled_out)),
        advice_action="" if advice is None else word_of(advice.action),
        advice_text="" if advice is None else advice.text or "",
        confidence=incident.confidence,
        cost_gpu_s=None if cost is None else cost.gpu_seconds,
        people_say=label_words(label),
        handling=handling_words(label),
        said_s=None if label is None else label.time_s,
    )


def printable(text: str) -> str:
    """The text with a space for each character that would move the cursor or break a line.

    Texts of exceptions and names may hold anything.
    """
    return one_line(text.replace(EMOJI_SELECTOR, ""))


def headline(incident: IncidentDocument) -> str:
    """One line: who, what, where, and because of what."""
    return incident_view(incident).headline


def incident_line(incident: IncidentDocument) -> str:
    """The incident as one plain line for logs: severity, change, kind, headline and id."""
    view = incident_view(incident)
    what = f"[{view.severity}] {view.change or view.state} {view.kind}"
    return printable(f"{what}: {view.headline} (incident {view.id})")


def describe_suspects(suspects: Sequence[SuspectEntry]) -> str:
    """The suspects in words: ``rank 2 (pid 4711)``, some joined by `` or ``; "" when there is nobody.

    Many ranks: ``one or more of ranks 96-127 (node-12 and 3 more nodes)``.
    """
    ranks = [suspect.rank for suspect in suspects if suspect.rank is not None]
    if len(ranks) > MOST_ONE_BY_ONE and len(ranks) == len(suspects):
        nodes = list(dict.fromkeys(suspect.node for suspect in suspects if suspect.node))
        more = f" and {len(nodes) - 1} more node{'s' if len(nodes) > 2 else ''}" if len(nodes) > 1 else ""
        return f"one or more of ranks {_some_ranks(ranks)}" + (f" ({nodes[0]}{more})" if nodes else "")
    names = []
    for suspect in suspects:
        name = f"{word_of(suspect.scope) or 'rank'} {suspect.id}"
        details = [f"pid {suspect.pid}"] if suspect.pid else []
        if suspect.gpu:
            details.append(short_device(suspect.gpu))
        if suspect.ranks:
            details.append(f"ranks {suspect.ranks}")
        elif suspect.node:
            details.append(suspect.node)
        names.append(name + (f" ({', '.join(details)})" if details else ""))
    return " or ".join(names)


def _some_ranks(ranks: Collection[int]) -> str:
    """All of them, or the first ones and how many they are."""
    words = format_ranks(sorted(ranks))
    if len(words) <= MOST_CHARS_OF_RANKS:
        return words
    return f"{words[: words.rindex(',', 0, MOST_CHARS_OF_RANKS)]} and so on, {len(set(ranks))} of them"


def _where_words(where: CodePlace | None) -> str:
    """``train.py:88 in forward``; empty when nothing is known."""
    if where is None:
        return ""
    place = f"{where.file}:{where.line}" if where.file else ""
    return " ".join(filter(None, (place, _phase_words(where))))


def _phase_words(where: CodePlace) -> str:
    """``in forward``; between the known phases there is nothing to say."""
    return f"in {where.phase}" if where.phase and where.phase != Phase.OTHER.name.lower() else ""


def describe_kind(incident: IncidentDocument) -> str:
    """What happened, in words that go on after the suspects: "died"."""
    kind = word_of(incident.kind)
    if not incident.suspects and kind in SENTENCES_OF_NOBODY:
        return SENTENCES_OF_NOBODY[kind] if incident.first_bad.group is not None else ALL_STAND
    return SENTENCES.get(kind, kind)


def _place_of_first(suspects: Sequence[SuspectEntry]) -> str:
    """``at train.py:88 in forward``, of the first suspect of whom it is known; empty when it is of none."""
    where = next((suspect.where for suspect in suspects if suspect.where is not None), None)
    if where is None:
        return ""
    place = f"at {Path(where.file).name}:{where.line}" if where.file else ""
    return " ".join(filter(None, (place, _phase_words(where))))


def _cause_words(cause: IncidentCause | None) -> str:
    """``xid_79 of gpu GPU-1321621e (node-02)``; empty where no condition explains it."""
    if cause is None:
        return ""
    if cause.device_kind == "code":
        return f"the program at {cause.device} (no fault of {cause.entity})"
    if cause.counted_by in _COUNTED_BY:
        return f"{cause.condition} ({cause.entity}), {_COUNTED_BY[cause.counted_by]}"
    device = short_device(cause.device or "")
    whose = f" of {cause.device_kind} {device}" if device else ""
    return f"{cause.condition}{whose} ({cause.entity})"


def short_device(device: str) -> str:
    """A GPU's UUID up to its first dash, as people say it; any other name as it is."""
    return "-".join(device.split("-")[:2]) if device.startswith("GPU-") else device


def places_of(view: IncidentView) -> dict[str, str]:
    """By place in the program where suspects are, who is there, in words; unknown places are left out."""
    there: dict[str, list[SuspectRow]] = {}
    for row in view.suspects:
        if row.where:
            there.setdefault(row.where, []).append(row)
    return {place: _who_is_there(rows) for place, rows in there.items()}


def _who_is_there(rows: Sequence[SuspectRow]) -> str:
    ranks = [row.rank for row in rows if row.rank is not None]
    return _some_ranks(ranks) if len(ranks) == len(rows) else ", ".join(row.id for row in rows)


def cleared_words(cleared: Sequence[RuledOutEntry]) -> list[str]:
    """Who only looks guilty and why not: a line for each reason, with all ranks that share it.

    Of a large job, thousands say the same. Errors that differ only in the port of a connection are the same.
    """
    shared: dict[str, list[RuledOutEntry]] = {}
    for item in cleared:
        text = f"{item.looks_guilty}, but {item.because}"
        shared.setdefault(_PORT.sub("]", text), []).append(item)
    return [_line_of(items, text) for text, items in shared.items()]


def _line_of(items: Sequence[RuledOutEntry], text: str) -> str:
    try:
        ranks = sorted({rank for item in items for rank in read_ranks(item.ranks or "")})
    except ValueError:  # a document of another release
        ranks = []
    who = ", ".join(item.who for item in items) if not ranks or len(items) == 1 else f"ranks {format_ranks(ranks)}"
    return f"{who}: each {text}" if len(ranks) > 1 else f"{who}: {text}"
