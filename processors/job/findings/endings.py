"""How ranks ended, as facts and in words; and why one that failed as well is not to blame. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ....telemetry.evidence_facts import EvidenceFact, How, SignalSender
from ....telemetry.vocabulary import Kind
from ...finding_document import EvidenceRow, RuledOutEntry
from ..detectors.crash.crash_order import SIGABRT, Ending, role_hint
from ..state.job_state import JobState
from .finding_body import evidence, ruled_out, source_of
from .wording import cut_short, ranks_words, signal_word

#: Where in torch's sources a victim's error was raised says nothing, and what follows its first words neither.
_LOCATION = re.compile(r"^\[[^\]]*\]\s*")
_MESSAGE_CHARS = 300
_BRIEF_CHARS = 120


def fact_of(ending: Ending) -> EvidenceFact:
    """How the rank ended, for programs, without where its training was: that is told of the cause alone."""
    if ending.sort == "exception":
        room = _MESSAGE_CHARS - len(ending.type) - len(": ")
        return EvidenceFact(
            how=How.RAISED,
            rank=ending.rank,
            type=cut_short(ending.type, _MESSAGE_CHARS),
            message=cut_short(ending.message, room) if room > 0 else "",
            in_thread=not ending.in_main,
            file=ending.file,
            line=ending.line if ending.file else None,
        )
    if ending.signal > 0:
        sender = SignalSender.LAUNCHER if ending.by_launcher else SignalSender.PROCESS if ending.sender_pid else None
        return EvidenceFact(
            how=How.ABORTED if ending.by_itself and ending.signal == SIGABRT else How.SIGNAL,
            rank=ending.rank,
            signal=ending.signal,
            sender=SignalSender.ITSELF if ending.by_itself else sender if ending.sender_pid else None,
            sender_pid=0 if ending.by_itself else ending.sender_pid,
        )
    if ending.normal:
        return EvidenceFact(how=How.LEFT, rank=ending.rank)
    if ending.exit_code >= 0:
        return EvidenceFact(how=How.EXIT, rank=ending.rank, exit_code=ending.exit_code)
    return EvidenceFact(how=How.VANISHED, rank=ending.rank)


def describe_ending(fact: EvidenceFact) -> str:
    """``"rank 3 was ended by SIGKILL"``; of an error in a thread, ``"a thread of rank 3 raised ..."``."""
    who = f"a thread of rank {fact.rank}" if fact.in_thread else f"rank {fact.rank}"
    return f"{who} {describe_exit(fact)}"


def describe_exit(fact: EvidenceFact) -> str:
    """``"was ended by SIGKILL"``, ``"raised ..."``: as ``describe_ending``, without who it was."""
    match fact.how:
        case How.RAISED:
            place = f" at {fact.file}:{fact.line}" if fact.file else ""
            return f"raised {fact.said}{place}"
        case How.ABORTED:
            return f"aborted itself ({signal_word(fact.signal)})"
        case How.SIGNAL if fact.sender is SignalSender.ITSELF:
            return f"ended itself ({signal_word(fact.signal)})"
        case How.SIGNAL:
            pid = f"pid {fact.sender_pid}"
            sender = f"the launcher ({pid})" if fact.sender is SignalSender.LAUNCHER else pid
            return f"was ended by {signal_word(fact.signal)}" + (f" sent by {sender}" if fact.sender else "")
        case How.LEFT:
            return "came to the end of its script and left"
        case How.EXIT:
            return f"ended with exit code {fact.exit_code}"
        case _:
            return "ended without a word (exit code not visible)"


def describe_joint_end(fact: EvidenceFact) -> str:
    """A sentence that lists all ``fact.endings``, where none of these ranks is the cause."""
    ends = "; ".join(map(describe_ending, fact.endings))
    return f"all ranks ended together: {ends}" if fact.how is How.TOGETHER else f"only victims' errors: {ends}"


def ending_row(job: JobState, ending: Ending) -> EvidenceRow:
    """The row of evidence for an ending, with its sentence and fact."""
    fact, source = fact_of(ending), source_of(job, ending.rank)
    return evidence(f"rank.{ending.sort}", source, ending.time_ns, describe_ending(fact), fact=fact)


def consequence(ending: Ending, kind: str, suspects: Sequence[int]) -> RuledOutEntry:
    """A ruled-out entry for a rank that printed an error or died, and is not to blame. kind: of the finding; suspects:
    its.
    """
    cause = f"{ranks_words(suspects)} came first" if suspects else "the job as a whole was ended or blocked"
    if role_hint(ending) == "stop":
        because = (
            f"that is how a launcher ends the rest; {cause}" if ending.by_launcher else f"only after that; {cause}"
        )
    elif ending.communication:
        because = f"its error only says that a peer went away or did not answer; {cause}"
    elif kind == Kind.DESYNC.value:
        because = f"failed inside the collective that did not match; {cause}"
    else:
        because = f"failed after that; {cause}"
    brief = replace(ending, message=cut_short(_LOCATION.sub("", ending.message), _BRIEF_CHARS))
    return ruled_out([ending.rank], describe_exit(fact_of(brief)), because)
