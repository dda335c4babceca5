"""What a run dropped, lost or could not write, counted and in words. Pure: counts in, lines and JSON out.

Each line is for a person at the end of a run and stands only where its count is not zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: The agent's reasons in words; others are readable as they are.
AGENT_WORDS: dict[str, str] = {
    "events_lost": "events overwritten before they were read",
    "events_dropped_by_writers": "events for which a ring had no room",
    "events_torn": "events left half-written by their rank",
    "rings_refused": "rings that could not be read",
    "rings_over_limit": "rings beyond the limit",
    "groups_over_limit": "process groups beyond the limit",
    "rows_without_group": "operations of unknown process groups",
    "open_rows": "operations whose end came too late",
    "ends_without_begin": "ends of operations whose begin is not known",
    "evidence_not_written": "pieces of evidence not written",
    "publish_refused": "messages refused by the bus",
}
PEER_WORDS: dict[str, str] = {
    "never_sent": "messages that the judge never had",
    "never_received": "messages that other nodes had to drop",
    "incidents_not_passed_on": "words to nodes that did not listen",
}
#: Counters of the agent that tell of lost telemetry, beside its drops.
AGENT_LOSSES = ("events_lost", "events_dropped_by_writers", "events_torn", "rings_refused")
#: Counted by the agent, but nothing that a verdict could miss.
NO_LOSS = frozenset(
    {
        "evidence_over_limit",
        "evidence_replaced",
        "foreign_messages",
        "problem_lines",
        "publish_refused_bytes",
        "requests_expired",
        "requests_for_nobody",
        "requests_of_unknown_action",
        "requests_refused",
        "requests_unreadable",
        "requests_without_answer",
        "rings_of_the_past",
        "strangers",
    }
)


#: Counts, and those of the agent and the peers by reason.
CountedLosses = Mapping[str, int | float | Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Counts of one run. Messages are those of the bus; drops of the agent go by reason."""

    #: Deleted from the capture to keep its bound: judged, but a replay begins after them.
    trimmed_messages: int = 0
    #: Seconds from the job's start to the first message still in the capture.
    capture_begins_s: float = 0.0
    #: Refused by the disk: judged from memory, but absent from a replay.
    unsaved_messages: int = 0
    #: Gone before the operators had read them: never judged.
    unjudged_messages: int = 0
    unreadable_records: int = 0
    #: An operator failed on them, or had failed on what they are of.
    contained_records: int = 0
    failed_commits: int = 0
    unwritten_revisions: int = 0
    agent: Mapping[str, int] = field(default_factory=dict)
    #: Between the nodes of one job, by reason.
    peers: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> CountedLosses:
        """The counts that are not zero, by name."""
        reasons = {"agent": self.agent, "peers": self.peers}
        counts: dict[str, int | float | Mapping[str, int]]
        counts = {name: getattr(self, name) for name in self.__slots__ if name not in reasons}
        for name, by_reason in reasons.items():
            counts[name] = {reason: count for reason, count in by_reason.items() if count}
        return {name: value for name, value in counts.items() if value}


def describe_losses(losses: Losses) -> list[str]:
    """One line per kind of loss that happened, with what follows from it."""
    lines = []
    if losses.trimmed_messages:
        lines.append(
            f"capture: its {losses.trimmed_messages} oldest messages were dropped to stay within the limit; "
            f"a replay begins {losses.capture_begins_s:.0f} s after the job's start"
        )
    if losses.unsaved_messages:
        lines.append(
            f"capture: {losses.unsaved_messages} messages are missing in it, the disk refused them; "
            "what they said was judged from memory, a replay will not have it"
        )
    if losses.unjudged_messages:
        lines.append(f"{losses.unjudged_messages} messages were lost before they were judged; verdicts may miss them")
    if losses.unreadable_records:
        lines.append(
            f"{losses.unreadable_records} records could not be read and were not judged; they are kept in the capture"
        )
    if losses.contained_records:
        lines.append(
            f"{losses.contained_records} records made an operator fail, or came after that; what they are of is judged "
            "anew from later ones"
        )
    if losses.failed_commits:
        lines.append(
            f"state: {losses.failed_commits} writes failed and were made up for in memory; incidents are not affected"
        )
    if losses.unwritten_revisions:
        lines.append(f"incidents.jsonl: {losses.unwritten_revisions} revisions are missing, the disk had no room")
    agent = [
        f"{count} {AGENT_WORDS.get(reason, reason.replace('_', ' '))}"
        for reason, count in losses.agent.items()
        if count and reason not in NO_LOSS
    ]
    if agent:
        lines.append("lost on the way from the ranks: " + ", ".join(agent))
    peers = [
        f"{count} {PEER_WORDS.get(reason, reason.replace('_', ' '))}"
        for reason, count in losses.peers.items()
        if count and reason not in NO_LOSS
    ]
    if peers:
        lines.append("lost between the nodes: " + ", ".join(peers))
    return lines
