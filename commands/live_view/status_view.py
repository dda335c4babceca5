"""The live view and its plain twin: what the person sees while a job runs. All of it goes to stderr.

``LiveView`` keeps a block at the foot of a terminal, ``LineView`` writes a line when something changes and now and then
a line of progress, ``JsonView`` writes the incident documents. None of them concludes anything.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ...telemetry.incident import canonical_line
from ...telemetry.incident_document import IncidentDocument
from ...telemetry.incident_writing import write_incident
from ...telemetry.vocabulary import ProcessState
from ..incident_text.incident_panel import SEVERITY_STYLE
from ..incident_text.incident_view import incident_line, incident_view, printable
from .job_status import JobStatus, RankStatus, WaitingRanks, describe_ranks
from .terminal_block import TerminalBlock

REDRAW_S = 0.25
#: A line of progress this often when there is no terminal.
PROGRESS_LINE_S = 30.0
#: Ranks that live for so long without a step are said to make none that is seen.
NO_STEP_S = 45.0
_SAID = float("inf")
#: Waiting shorter than this is the ordinary course of a collective.
WORTH_SHOWING_S = 1.0
#: Ranks shown one by one; beyond that they are put together by what they do.
SINGLE_RANKS = 8


class JobView(Protocol):
    """Shows a job. Every method returns at once and raises only OSError (the terminal is gone)."""

    def incident(self, incident: IncidentDocument) -> None:
        """Shows a revision of an incident that was just concluded."""
        ...

    def update(self, status: JobStatus) -> None:
        """Shows the job's state; called every turn, the view decides what is due."""
        ...

    def close(self) -> None:
        """Leaves the terminal as it was."""


class JsonView:
    """Incident documents as JSON lines on stderr; stdout stays the command's."""

    def incident(self, incident: IncidentDocument) -> None:
        """Writes the incident to stderr, as the same line as in incidents.jsonl."""
        sys.stderr.write(canonical_line(write_incident(incident)).decode())
        sys.stderr.flush()

    def update(self, status: JobStatus) -> None:
        """Does nothing: progress is no document."""

    def close(self) -> None:
        """Does nothing: nothing is held back."""


class LineView:
    """Plain lines."""

    def __init__(self, say: Callable[[str], None], *, now: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._now = now
        self._next_progress = now() + PROGRESS_LINE_S
        self._without_steps_since: float | None = None
        self._shown: set[tuple[str, int]] = set()
        self._said: dict[str, str] = {}

    def incident(self, incident: IncidentDocument) -> None:
        """Says the incident in a line, unless the last line of this incident was the same."""
        line = incident_line(incident)
        if self._said.get(incident.id) != line:
            self._said[incident.id] = line
            self._say(line)

    def update(self, status: JobStatus) -> None:
        """Says a wait once when it gets long, and every half minute a line of progress."""
        waiting = [w for w in status.waiting() if time.monotonic_ns() - w.since_ns > WORTH_SHOWING_S * 3e9]
        for wait in waiting:
            if (wait.group, wait.sequence) not in self._shown:
                self._shown.add((wait.group, wait.sequence))
                self._say(describe_waiting(wait, status))
        if self._now() >= self._next_progress:
            self._next_progress = self._now() + PROGRESS_LINE_S
            if any(not rank.ended for rank in status.ranks.values()):
                # A wait that goes on is said each time: once, a minute ago, is forgotten.
                self._say("; ".join([describe_progress(status), *(describe_waiting(w, status) for w in waiting[:1])]))
        self._say_that_no_step_is_seen(status)

    def _say_that_no_step_is_seen(self, status: JobStatus) -> None:
        """Once: what would help, and what is known meanwhile."""
        living = any(not rank.ended for rank in status.ranks.values())
        if not living or status.has_steps or self._without_steps_since == _SAID:
            self._without_steps_since = None if self._without_steps_since != _SAID else _SAID
        elif self._without_steps_since is None:
            self._without_steps_since = self._now()
        elif self._now() - self._without_steps_since >= NO_STEP_S and not _anyone_waits_long(status):
            self._without_steps_since = _SAID
            self._say(describe_lack_of_steps(status))

    def close(self) -> None:
        """Does nothing: lines stay where they are."""


class LiveView:
    """A block of lines at the foot of the terminal on stderr."""

    def __init__(self, job: str, *, running_s: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        """``running_s``: how long the job has run already. Raises OSError when stderr is no terminal."""
        self._job = job
        self._now = now
        self._started = now() - running_s
        self._due = 0.0
        self._block = TerminalBlock(sys.stderr.fileno())
        self._incidents: dict[str, IncidentDocument] = {}
        os.get_terminal_size(sys.stderr.fileno())

    def incident(self, incident: IncidentDocument) -> None:
        """Notes the incident, and makes the next update draw it at once."""
        self._incidents[incident.id] = incident
        self._due = 0.0

    def update(self, status: JobStatus) -> None:
        """Draws the block anew, a few times a second at most."""
        if self._now() < self._due:
            return
        self._due = self._now() + REDRAW_S
        view = render_status(self._job, status, self._incidents, self._now() - self._started)
        self._block.draw(render_lines(view, self._block.width)[: self._block.max_height])

    def close(self) -> None:
        """Takes the block away from the terminal."""
        self._block.clear()


def render_lines(view: RenderableType, width: int) -> list[str]:
    """The view as lines with colours, none wider than ``width``."""
    console = Console(
        file=io.StringIO(), force_terminal=True, width=width, color_system="standard", legacy_windows=False
    )
    with console.capture() as capture:
        console.print(view, no_wrap=True, overflow="ellipsis", crop=True)
    return capture.get().rstrip("\n").split("\n")


def render_status(
    job: str, status: JobStatus, incidents: Mapping[str, IncidentDocument], elapsed_s: float
) -> RenderableType:
    """What the live view shows: head line, ranks, who waits for whom, incidents. elapsed_s: since the start."""
    minutes, seconds = divmod(int(elapsed_s), 60)
    pace = status.seconds_per_step
    head = f"whichrank · {job}"
    if status.ranks:
        head += f" · {len(status.ranks)} of {status.world_size or '?'} ranks · {step_words(status)}"
    head += f" · {pace:.2f} s/step" if pace else ""
    head += f" · attempt {status.attempts}" if status.attempts > 1 else ""
    parts: list[RenderableType] = [
        Rule(Text(printable(f"{head} · {minutes}:{seconds:02d}")), style="dim", align="left")
    ]
    waiting = [w for w in status.waiting() if _age_s(w.since_ns) > WORTH_SHOWING_S]
    if status.ranks:
        parts.append(_rank_table(status, waiting))
    elif not status.ranks:
        parts.append(Text("no rank has started yet", style="dim"))
    if status.ranks and not status.has_steps and elapsed_s >= NO_STEP_S:
        parts.append(
            Text("no step is seen: call whichrank.step() at the end of each turn", style="yellow", no_wrap=True)
        )
    parts.extend(Text(describe_waiting(wait, status), style="yellow", no_wrap=True) for wait in waiting[:2])
    for shown in map(incident_view, list(incidents.values())[-3:]):
        style = SEVERITY_STYLE.get(shown.severity, "")
        style = style if shown.state == "open" else "dim"
        text = f"● {shown.severity} · {shown.state} · {shown.verdict}"
        parts.append(Text(printable(text), style=style, no_wrap=True))
        if shown.place:  # on a line of its own: at the end of a long one it would be cut off
            parts.append(Text(printable(f"  {shown.place}"), style=style, no_wrap=True))
    return Group(*parts)


def describe_waiting(wait: WaitingRanks, status: JobStatus) -> str:
    """A wait in words: ``ranks 0-2 have waited 3.2 s in all_reduce 97 of dp for rank 3 (forward)``."""
    phases = {status.ranks[rank].phase.name.lower() for rank in wait.waited_for if rank in status.ranks}
    doing = f" ({', '.join(sorted(phases))})" if phases else ""
    verb = "have waited" if len(wait.waiters) != 1 else "has waited"
    return printable(
        f"{describe_ranks(wait.waiters)} {verb} {_age_s(wait.since_ns):.1f} s in {wait.operation} "
        f"{wait.sequence} of {wait.group} for {describe_ranks(wait.waited_for)}{doing}"
    )


def describe_progress(status: JobStatus) -> str:
    """One line on how far and how fast the job is."""
    pace = status.seconds_per_step
    alive = [rank for rank in status.ranks.values() if not rank.ended]
    phases = sorted({rank.phase.name.lower() for rank in alive})
    return f"{step_words(status)}, {len(alive)} ranks alive in {'/'.join(phases) or '-'}" + (
        f", {pace:.2f} s per step" if pace else ""
    )


def step_words(status: JobStatus) -> str:
    """The step in words: ``step 41``; where it is inferred, or none is seen, that is said."""
    if not status.has_steps and not status.step:
        return "no step seen"
    return f"step {status.step}" + (" (inferred from calls that repeat)" if status.steps_inferred else "")


def describe_lack_of_steps(status: JobStatus) -> str:
    """Text for people: that no step is seen, what would help, and which calls are seen instead."""
    group, calls = status.calls()
    known = f"{calls} calls in group {printable(group)}" if calls else "no calls in any group"
    return (
        "no step is seen yet: no optimizer of torch's has made one, and calls are not known to repeat; if this is no "
        "long first step, call whichrank.step() at the end of each turn. Meanwhile hangs are judged by the calls "
        f"({known} so far); slow ranks and goodput are not known"
    )


def _anyone_waits_long(status: JobStatus) -> bool:
    """Then that is the news, and the reason why no step ends."""
    return any(_age_s(wait.since_ns) > 3 * WORTH_SHOWING_S for wait in status.waiting())


def _rank_table(status: JobStatus, waiting: Sequence[WaitingRanks]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for _ in range(5):
        table.add_column(no_wrap=True)
    guilty = {rank for wait in waiting for rank in wait.waited_for}
    waits_for = {rank: wait for wait in reversed(waiting) for rank in wait.waiters}
    ranks = sorted(status.ranks.values(), key=lambda r: r.rank)
    if len(ranks) <= SINGLE_RANKS:
        for rank in ranks:
            wait = waits_for.get(rank.rank)
            table.add_row(
                f"rank {rank.rank}",
                f"step {rank.step}",
                _doing(rank),
                f"{_age_s(rank.phase_since_ns):.1f} s" if rank.phase_since_ns and not rank.ended else "",
                f"waits for {describe_ranks(wait.waited_for)}" if wait else "",
                style="bold yellow" if rank.rank in guilty else "dim" if rank.ended else "",
            )
        return table
    alike: dict[tuple[int, str], list[int]] = {}
    for rank in ranks:
        alike.setdefault((rank.step, _doing(rank)), []).append(rank.rank)
    for (step, doing), members in sorted(alike.items(), key=lambda item: len(item[1]))[:SINGLE_RANKS]:
        style = "bold yellow" if guilty.intersection(members) else ""
        table.add_row(describe_ranks(members), f"step {step}", doing, "", "", style=style)
    return table


def _doing(rank: RankStatus) -> str:
    if rank.ended:
        return printable(rank.ended)
    if rank.state is ProcessState.STOPPED:
        return "stopped"
    return rank.phase.name.lower()


def _age_s(since_ns: int) -> float:
    return max(0.0, (time.monotonic_ns() - since_ns) / 1e9)
