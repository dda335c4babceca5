"""Which lines of the user's code called the operations of a finding, as the ranks' rings have them.

Ranks that fail tell the lines of their newest calls; of others they are asked for. Ranks of one program issue the calls
of a group from the same lines, so where two of them differ although the calls look alike, that is where they parted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....telemetry.records import Event, Identity, Record
from ....telemetry.topics import TOPIC_REQUESTS
from ....telemetry.vocabulary import EventName, Kind
from ...finding_document import CodePlace, EvidenceRow, FindingBody, SuspectEntry
from ...operator import Context
from ..state.finding_memory import AskedCall
from ..state.job_state import JobState
from ..state.rank_state import CallSite, OpenFinding
from .finding_body import evidence
from .wording import ranks_words

#: Of a rank; an answer has eight.
MOST_CALLS = 64
#: Ranks of a finding whose lines are asked for.
MOST_ASKED = 6
SIGNAL = "collectives.site"
_LONGEST = 1000
_ACTION = "calls"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    file: str
    line: int
    function: str


def take_calls(job: JobState, event: Event) -> bool:
    """Keeps the lines that a RANK_CALLS event tells of its rank, the newest MOST_CALLS; whether it told any that can be
    read.
    """
    values = event.attributes
    group = job.groups.index_of(str(values.get("group", "")))
    seqs, lines = values.get("seqs"), str(values.get("sites", "")).splitlines()
    if group is None or not isinstance(seqs, tuple | list) or len(seqs) != len(lines):
        return False
    is_p2p = bool(values.get("point_to_point"))
    found = [site for seq, line in zip(seqs, lines, strict=True) if (site := _read(group, is_p2p, seq, line))]
    facts = job.facts(event.identity.rank)
    told = {(site.group, site.point_to_point, site.seq) for site in found}
    kept = [site for site in facts.calls if (site.group, site.point_to_point, site.seq) not in told]
    facts.calls = [*kept, *found][-MOST_CALLS:]
    job.unsaved.facts = True
    return bool(found)


def _read(group: int, point_to_point: bool, seq: Any, line: str) -> CallSite | None:
    parts = line.split("\t")
    if len(parts) != 3 or not isinstance(seq, int) or not parts[1].isdecimal():
        return None
    file, number, function = parts
    if not file or len(file) > _LONGEST or len(number) > 9:
        return None
    return CallSite(group, point_to_point, seq, file, int(number), function[:_LONGEST])


def ask_for_calls(job: JobState, ctx: Context, now: int, finding: OpenFinding) -> None:
    """Emits a request per rank, MOST_ASKED at most, for the lines of the calls that the finding names in its detail.

    Best effort: the finding stands without an answer. The id is stable, so that repeats coincide.
    """
    by_rank: dict[int, AskedCall] = {}
    for asked in finding.detail.calls:
        by_rank.setdefault(asked.rank, asked)
    for rank, asked in list(by_rank.items())[:MOST_ASKED]:
        node = job.node_of(rank)
        launch = job.attempts.launch_of(rank)
        identity = Identity(cluster=job.cluster, run=job.run, job=job.job, attempt=launch, node=node, rank=rank)
        attributes = {
            "id": f"{finding.key}/calls/{rank}",
            "action": _ACTION,
            "rank": rank,
            "node": node,
            "group": job.groups.known[asked.group].uid,
            "point_to_point": asked.point_to_point,
            "seq": asked.seq,
        }
        request = Event(name=EventName.EVIDENCE_REQUEST, identity=identity, time_ns=now, attributes=attributes)
        ctx.emit(Record(topic=TOPIC_REQUESTS, key=node, stamp_ns=now, payload=request))


def with_sites(job: JobState, finding: OpenFinding, body: FindingBody) -> FindingBody:
    """``body`` with the known lines of the finding's calls as evidence, and for some kinds as where suspects are."""
    asked = finding.detail.calls
    if finding.kind == Kind.DESYNC.value:
        return _with_parting(job, asked, finding, body)
    by_call: dict[tuple[int, bool, int], dict[int, _Place]] = {}
    for each in asked:
        if (place := _places(job, each).get(each.seq)) is not None:
            by_call.setdefault(each[1:], {})[each.rank] = place
    for (group, is_p2p, seq), places in by_call.items():
        what = f"{'operation' if is_p2p else 'collective'} {seq}"
        body = body.with_evidence(_site_row(job, finding, what, group, places))
        if finding.kind == Kind.NUMERIC_FIRST_RANK.value:
            body = _with_suspects_at(body, places)
    return body


def _with_parting(job: JobState, asked: Sequence[AskedCall], finding: OpenFinding, body: FindingBody) -> FindingBody:
    if not asked:
        return body
    known = {each.rank: _places(job, each) for each in asked}
    suspects = [rank for rank in known if rank in finding.suspects]
    others = [rank for rank in known if rank not in finding.suspects]
    seq = asked[0].seq
    parted = _first_parting(known, suspects, others)
    if parted is not None and (seq < 0 or parted < seq):
        seq = parted
    places = {rank: found[seq] for rank, found in known.items() if seq in found}
    if not places:
        return body
    row = _site_row(job, finding, f"collective {seq}", asked[0].group, places)
    return _with_suspects_at(body.with_evidence(row), places)


def _with_suspects_at(body: FindingBody, places: Mapping[int, _Place]) -> FindingBody:
    return replace(body, suspects=tuple(_at(item, places) for item in body.suspects))


def _at(item: SuspectEntry, places: Mapping[int, _Place]) -> SuspectEntry:
    place = places.get(item.rank) if item.rank is not None else None
    if place is None:
        return item
    return replace(item, where=CodePlace(file=place.file, line=place.line, phase=item.phase))


def _first_parting(
    known: Mapping[int, Mapping[int, _Place]], suspects: Sequence[int], others: Sequence[int]
) -> int | None:
    """The first number that a suspect called from another line than all the others, who agree."""
    for seq in sorted({seq for rank in suspects for seq in known[rank]}):
        theirs = {known[rank][seq] for rank in others if seq in known[rank]}
        ours = {known[rank][seq] for rank in suspects if seq in known[rank]}
        if len(theirs) == 1 and not theirs & ours:
            return seq
    return None


def _site_row(job: JobState, finding: OpenFinding, what: str, group: int, places: Mapping[int, _Place]) -> EvidenceRow:
    ranks_at: dict[_Place, list[int]] = {}
    for rank, place in sorted(places.items()):
        ranks_at.setdefault(place, []).append(rank)
    said = "; ".join(
        f"by {ranks_words(ranks)} at {place.file}:{place.line} in {place.function}" for place, ranks in ranks_at.items()
    )
    call = f"{what} of group {job.groups.name_of(group)}"
    value = "; ".join(f"{place.file}:{place.line}" for place in ranks_at)
    return evidence(SIGNAL, call, finding.onset_ns, f"{call} was called {said}", value)


def _places(job: JobState, asked: AskedCall) -> dict[int, _Place]:
    """By number, of this rank's calls of that sort in that group."""
    facts = job.ranks.get(asked.rank)
    return {
        site.seq: _Place(file=site.file, line=site.line, function=site.function)
        for site in (facts.calls if facts is not None else ())
        if (site.group, site.point_to_point) == (asked.group, asked.point_to_point)
    }
