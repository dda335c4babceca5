"""The one place that reads sentences of ours: those of releases that had not yet put facts beside them.

Up to 0.1.0 a row of evidence said in ``shows`` alone how a rank had ended, and programs took it apart. Findings and
incidents of such a release are still in state and on topics in the middle of an incident. Their wording is fixed by
what they have written, so the patterns here never follow a change of today's sentences. What cannot be read is unknown,
never an error. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from signal import Signals
from typing import Any

from ..telemetry.evidence_facts import EvidenceFact, How, SignalSender
from ..telemetry.incident_document import EvidenceRow, RuledOutEntry
from ..telemetry.incident_reading import read_evidence
from ..telemetry.told_ranks import read_ranks

_ENDED = re.compile(
    r"(?P<thread>a thread of )?rank (?P<rank>\d+) (?:"
    r"raised (?P<said>.*?)(?: at (?P<file>\S+):(?P<line>\d+))?"
    r"|was ended by (?P<signal>\w+(?: \d+)?)(?: sent by (?:(?P<launcher>the launcher) \()?pid (?P<pid>\d+)\)?)?"
    r"|(?P<itself>aborted|ended) itself \((?P<own>\w+(?: \d+)?)\)"
    r"|ended with exit code (?P<code>\d+)"
    r"|(?P<vanished>ended without a word) \(exit code not visible\)"
    r"|(?P<left>came to the end of its script) and left)"
    r"(?: in step (?P<step>\d+))?(?:, phase (?P<phase>\w+))?"
    r"(?: \(it leaves no trace .*|, before ranks? .*|, while the others .*)?",
    re.DOTALL,
)
_REPEATED = re.compile(r"ranks? (?P<ranks>[\d,-]+) raised (?P<type>\S+) as well: one cause, .*", re.DOTALL)
_NO_ROOM = re.compile(r"ranks? (?P<ranks>[\d,-]+) found no room: ")
_SEVERAL = re.compile(r"(?P<how>all ranks ended together|only victims' errors): (?P<ends>.*)", re.DOTALL)
_NEXT = re.compile(r"; (?=(?:a thread of )?rank \d+ )")
_ELSEWHERE = "errors elsewhere only say that a peer went away; "
_NODE = "node "
_WHO = re.compile(r"ranks? ([0-9][0-9,-]*)")
#: What failures and troubles kept of such sentences, to compare errors by: # for numbers; troubles in small letters.
_KEY = re.compile(
    r"(?:was ended by (?P<signal>[\w#]+(?: #)?)(?: sent by (?P<sender>the launcher|pid)[^,]*?)?"
    r"|(?:aborted|ended) itself \((?P<own>[\w#]+(?: #)?)\)"
    r"|ended with (?P<code>exit code (?:#|\d+))"
    r"|(?P<vanished>ended without a word) \(exit code not visible\)"
    r"|(?P<left>came to the end of its script and left))"
    r"(?: in step #)?(?:, phase (?P<phase>\w+))?(?: \(it leaves no trace|, before ranks? |, while the others|$)"
)
_KEY_OF_RANK = re.compile(r"(?:^|; )(?:a thread of )?rank # ")
_SEVERAL_KEYS = re.compile(r"(?:all ranks ended together|only victims' errors): ", re.IGNORECASE)
_ITSELF = re.compile(r"\((?P<signal>\w+(?: #)?)\)")
_VANISHED = "a word (exit code not visible)"
_PARTS = " | "


def fact_of_row(row: Mapping[str, Any]) -> EvidenceFact | None:
    """The fact of a row of evidence as JSON, from its sentence where an older release wrote none; None: it has none."""
    return fact_of_evidence(read_evidence(row))


def fact_of_evidence(row: EvidenceRow) -> EvidenceFact | None:
    """The fact of a row of evidence, from its sentence where an older release wrote none; None: it has none."""
    return row.fact if row.fact is not None else _fact_of_sentence(row.signal, row.source, row.shows)


def _fact_of_sentence(signal: str, source: str, shows: str) -> EvidenceFact | None:
    if signal.startswith("peer."):
        if not source.startswith(_NODE):
            return None
        how = How.CLOSED if signal == "peer.closed" else How.SILENT
        return EvidenceFact(how=how, node=source.removeprefix(_NODE))
    if signal not in ("rank.exception", "rank.exit"):
        return None
    if shows.startswith(_ELSEWHERE):
        return EvidenceFact(how=How.VICTIMS)
    if several := _SEVERAL.fullmatch(shows):
        how = How.TOGETHER if several["how"].startswith("all") else How.VICTIMS
        endings = (_ending(part) for part in _NEXT.split(several["ends"]))
        return EvidenceFact(how=how, endings=tuple(filter(None, endings)))
    if repeated := _REPEATED.fullmatch(shows):
        return EvidenceFact(how=How.RAISED, ranks=repeated["ranks"], type=repeated["type"])
    if refused := _NO_ROOM.match(shows):
        return EvidenceFact(how=How.RAISED, ranks=refused["ranks"])
    return _ending(shows)


def _ending(sentence: str) -> EvidenceFact | None:
    found = _ENDED.fullmatch(sentence)
    if found is None:
        return None
    step, phase = found["step"], found["phase"] or ""
    fact = EvidenceFact(rank=int(found["rank"]), step=None if step is None else int(step), phase=phase)
    if found["said"] is not None:
        kind, _, message = found["said"].partition(": ")
        fact = replace(fact, how=How.RAISED, type=kind, message=message, in_thread=found["thread"] is not None)
        return fact if found["file"] is None else replace(fact, file=found["file"], line=int(found["line"]))
    if found["signal"] is not None:
        sender = SignalSender.LAUNCHER if found["launcher"] else SignalSender.PROCESS if found["pid"] else None
        pid = int(found["pid"] or 0)
        return replace(fact, how=How.SIGNAL, signal=_number(found["signal"]), sender=sender, sender_pid=pid)
    if found["itself"] is not None:
        how = How.ABORTED if found["itself"] == "aborted" else How.SIGNAL
        return replace(fact, how=how, signal=_number(found["own"]), sender=SignalSender.ITSELF)
    if found["code"] is not None:
        return replace(fact, how=How.EXIT, exit_code=int(found["code"]))
    return replace(fact, how=How.LEFT if found["left"] else How.VANISHED)


def _number(signal: str) -> int:
    if signal in Signals.__members__:
        return int(Signals[signal])
    number = signal.rpartition(" ")[2]
    return int(number) if number.isdigit() else 0


def ranks_ruled_out(row: RuledOutEntry) -> frozenset[int]:
    """Ranks that a row of ``ruled_out`` is about; empty where it names none."""
    if row.fact is not None and row.fact.rank is not None:
        return frozenset({row.fact.rank})
    written = row.ranks
    if written is None and (found := _WHO.fullmatch(row.who)):
        written = found[1]
    try:
        return frozenset(read_ranks(written or ""))
    except ValueError:
        return frozenset()


def event_of_condition(condition: Mapping[str, Any]) -> str:
    """The kernel's or driver's word that a condition is of; of an older release the first word of its name."""
    told = condition.get("event")
    return str(told) if told is not None else str(condition["name"]).partition("_")[0]


def key_of_failure(error: str) -> str:
    """The key by which failures are compared, from an older release's error; one of today's comes back as it is."""
    if itself := _ITSELF.fullmatch(error):
        return f"{itself['signal']} by itself"
    if error == _VANISHED:
        return How.VANISHED.value
    first, *others = _KEY_OF_RANK.split(error)
    return "; ".join([first, *map(_failure_of_several, others)]) if others else error


def _failure_of_several(part: str) -> str:
    found = _KEY.match(part)
    if found is None:
        return part.removeprefix("raised ")
    own = f"{found['own']} by itself" if found["own"] else ""
    return found["signal"] or own or found["code"] or How.VANISHED.value


def key_of_trouble(error: str) -> str:
    """The key by which troubles are compared, from the error in an older release's row of ``troubles``."""
    return _PARTS.join(map(_trouble_of_part, error.split(_PARTS)))


def _trouble_of_part(part: str) -> str:
    several = _SEVERAL_KEYS.match(part)
    if several:
        return "; ".join(map(_trouble_of_part, filter(None, _KEY_OF_RANK.split(part[several.end() :]))))
    if part.startswith("raised "):
        return part.removeprefix("raised ")
    if part.startswith(_ELSEWHERE):
        return How.VICTIMS.value
    found = _KEY.match(part)
    if found is None:
        return part
    name = found["signal"] or found["own"] or found["code"]
    name = name or (How.LEFT if found["left"] else How.VANISHED).value
    sender = SignalSender.ITSELF.value if found["own"] else _SENDERS.get(found["sender"] or "", "")
    return name + (f" by {sender}" if sender else "") + (f" in {found['phase']}" if found["phase"] else "")


_SENDERS = {"the launcher": SignalSender.LAUNCHER.value, "pid": SignalSender.PROCESS.value}


def hows_of_trouble(error: str) -> list[str]:
    """The ways of ending that rules ask for, of an older row's error: ["aborted"] or []."""
    return [How.ABORTED.value] if "aborted itself (" in error else []
