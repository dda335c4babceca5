"""An incident as a person reads it: who, what, since when, why, and who only looks guilty. Pure rendering."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ...telemetry.ring_layout import format_ranks, parse_ranks
from ...telemetry.vocabulary import Kind, Phase
from ..run_folder.labels import label_words

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
}
#: ``[127.0.0.1]:51592`` in an error of gloo.
_PORT = re.compile(r"\](:\d+)")
#: The same where nobody is named.
SENTENCES_OF_NOBODY: dict[str, str] = {
    Kind.RANK_NOT_ENTERED: "ranks wait in a collective for others that cannot be seen",
}
#: And where none is in a collective.
ALL_STAND = "all ranks stand still, and none waits in a collective"
#: More suspects are not named one by one, and of their ranks so much is said.
MOST_ONE_BY_ONE, MOST_CHARS_OF_RANKS = 4, 80
SEVERITY_STYLE = {"page": "bold red", "ticket": "yellow", "info": "cyan"}


#: Asks for the picture form of a character; terminals disagree on its width, and lines of a box would not end alike.
EMOJI_SELECTOR = "\ufe0f"


def printable(text: str) -> str:
    """Texts of exceptions and names may hold anything: what would move the cursor or break a line becomes a space."""
    return "".join(c if c.isprintable() else " " for c in text.replace(EMOJI_SELECTOR, ""))


def describe_suspects(document: Mapping[str, Any]) -> str:
    """``rank 2 (pid 4711)``, some joined by `` or ``; empty when there is nobody to suspect.

    Many ranks: ``one or more of ranks 96-127 (node-12 and 3 more nodes)``.
    """
    names = []
    ranks = [suspect.get("rank") for suspect in document.get("suspects") or ()]
    if len(ranks) > MOST_ONE_BY_ONE and all(isinstance(rank, int) for rank in ranks):
        nodes = list(dict.fromkeys(str(s["node"]) for s in document["suspects"] if s.get("node")))
        more = f" and {len(nodes) - 1} more node{'s' if len(nodes) > 2 else ''}" if len(nodes) > 1 else ""
        return f"one or more of ranks {_some_ranks(ranks)}" + (f" ({nodes[0]}{more})" if nodes else "")
    for suspect in document.get("suspects") or ():
        name = f"{suspect.get('scope', 'rank')} {suspect.get('id')}"
        details = [f"pid {suspect['pid']}"] if suspect.get("pid") else []
        if suspect.get("gpu"):
            details.append(short_device(str(suspect["gpu"])))
        if suspect.get("ranks"):
            details.append(f"ranks {suspect['ranks']}")
        elif suspect.get("node"):
            details.append(str(suspect["node"]))
        names.append(name + (f" ({', '.join(details)})" if details else ""))
    return " or ".join(names)


def _some_ranks(ranks: Collection[int]) -> str:
    """All of them, or the first ones and how many they are."""
    words = format_ranks(sorted(ranks))
    if len(words) <= MOST_CHARS_OF_RANKS:
        return words
    return f"{words[: words.rindex(',', 0, MOST_CHARS_OF_RANKS)]} and so on, {len(set(ranks))} of them"


def describe_where(suspect: Mapping[str, Any]) -> str:
    """``train.py:88 in forward``; empty when nothing is known."""
    where = suspect.get("where") or {}
    place = f"{where['file']}:{where.get('line')}" if where.get("file") else ""
    phase = _phase_words(where)
    return " ".join(filter(None, (place, phase)))


def _phase_words(where: Mapping[str, Any]) -> str:
    """``in forward``; between the known phases there is nothing to say."""
    phase = where.get("phase")
    return f"in {phase}" if phase and phase != Phase.OTHER.name.lower() else ""


def describe_verdict(document: Mapping[str, Any]) -> str:
    """``rank 2 (pid 4711) died``."""
    return " ".join(filter(None, (describe_suspects(document), describe_kind(document))))


def describe_kind(document: Mapping[str, Any]) -> str:
    """What happened, in a sentence that goes on after its suspects."""
    kind = str(document.get("kind"))
    if not document.get("suspects") and kind in SENTENCES_OF_NOBODY:
        waits = (document.get("first_bad") or {}).get("group") is not None
        return SENTENCES_OF_NOBODY[kind] if waits else ALL_STAND
    return SENTENCES.get(kind, kind)


def describe_place(document: Mapping[str, Any]) -> str:
    """``at train.py:88 in forward``, of the first suspect of whom it is known; empty when it is of none."""
    where = next((s.get("where") for s in document.get("suspects") or () if s.get("where")), None) or {}
    place = f"at {Path(where['file']).name}:{where.get('line')}" if where.get("file") else ""
    phase = _phase_words(where)
    return " ".join(filter(None, (place, phase)))


def headline(document: Mapping[str, Any]) -> str:
    """One line: who, what, where, and because of what."""
    place, cause = describe_place(document), describe_cause(document)
    return (
        describe_verdict(document) + (f"; it is {place}" if place else "") + (f"; because of {cause}" if cause else "")
    )


def describe_cause(document: Mapping[str, Any]) -> str:
    """``xid_79 of gpu GPU-1321621e (node-02)``; empty where no condition explains it."""
    cause = document.get("cause")
    if not isinstance(cause, Mapping):
        return ""
    if cause.get("device_kind") == "code":
        return f"the program at {cause.get('device')} (no fault of {cause.get('entity')})"
    device = short_device(str(cause.get("device") or ""))
    whose = f" of {cause.get('device_kind')} {device}" if device else ""
    return f"{cause.get('condition')}{whose} ({cause.get('entity')})"


def short_device(device: str) -> str:
    """A GPU's UUID up to its first dash, as people say it; any other name as it is."""
    return "-".join(device.split("-")[:2]) if device.startswith("GPU-") else device


def incident_line(document: Mapping[str, Any]) -> str:
    """One plain line for logs."""
    change = document.get("change") or document.get("state")
    what = f"[{document.get('severity')}] {change} {document.get('kind')}"
    return printable(f"{what}: {headline(document)} (incident {document['id']})")


def incident_panel(document: Mapping[str, Any]) -> RenderableType:
    """The whole incident in a box."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    suspects: Sequence[Mapping[str, Any]] = document.get("suspects") or ()
    table.add_row("who", Text(describe_suspects(document) or "nobody in particular", style="bold"))
    kind = str(document.get("kind"))
    job = document.get("job") or {}
    if job.get("name") or job.get("id"):
        table.add_row("job", Text(printable(" · ".join(str(job[key]) for key in ("name", "id") if job.get(key)))))
    table.add_row("what", Text(f"{describe_kind(document)}  [{document.get('bucket')} / {kind}]"))
    for place, there in _places(suspects).items():
        table.add_row("where", Text(printable(place if len(suspects) == 1 else f"{there}: {place}")))
    if cause := describe_cause(document):
        table.add_row("because", Text(printable(cause), style="bold"))
    advice = document.get("advice") or {}
    if advice.get("text"):
        table.add_row("do", Text(printable(f"{advice['text']}  [{advice.get('action')}]")))
    first = document.get("first_bad") or {}
    if first.get("step") is not None or first.get("operation"):
        table.add_row("first bad", Text(_first_bad(first)))
    table.add_row("since", _times(document.get("times") or {}))
    victims = document.get("victims") or {}
    if victims.get("count"):
        plural = "s" if victims["count"] != 1 else ""
        table.add_row("victims", Text(f"{victims['count']}: rank{plural} {victims.get('ranks')}"))
    for index, item in enumerate(document.get("evidence") or ()):
        text = f"{item.get('shows') or item.get('value')}  ({item.get('source')}: {item.get('signal')})"
        table.add_row("why" if index == 0 else "", Text(printable(text)))
    for index, text in enumerate(cleared_words(document.get("ruled_out") or ())):
        table.add_row("not guilty" if index == 0 else "", Text(printable(text)))
    coverage = document.get("coverage") or {}
    if coverage.get("ranks_seen") is not None:
        table.add_row("seen", f"{coverage.get('ranks_seen')} of {coverage.get('ranks_expected')} ranks")
    if document.get("confidence") is not None:
        table.add_row("confidence", f"{float(document['confidence']):.2f}")
    if said := label_words(document.get("label")):
        table.add_row("people say", Text(printable(said)))
    severity = str(document.get("severity"))
    style = SEVERITY_STYLE.get(severity, "")
    title = f"[{style}]{severity}[/] · {kind} · {document.get('state')}" if style else severity
    return Panel(Group(table), title=title, subtitle=f"incident {document['id']}", border_style=style or "none")


def _places(suspects: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Where they are, as far as it is known, and who is there."""
    there: dict[str, list[Mapping[str, Any]]] = {}
    for suspect in suspects:
        if place := describe_where(suspect):
            there.setdefault(place, []).append(suspect)
    return {
        place: _some_ranks([item["rank"] for item in items])
        if all(isinstance(item.get("rank"), int) for item in items)
        else ", ".join(str(item.get("id")) for item in items)
        for place, items in there.items()
    }


def cleared_words(cleared: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each reason, with all ranks that share it: of a large job, thousands say the same.

    Errors that differ only in the port of a connection are the same.
    """
    shared: dict[str, list[Mapping[str, Any]]] = {}
    for item in cleared:
        text = f"{item.get('looks_guilty')}, but {item.get('because')}"
        shared.setdefault(_PORT.sub("]", text), []).append(item)
    return [_line_of(items, text) for text, items in shared.items()]


def _line_of(items: Sequence[Mapping[str, Any]], text: str) -> str:
    try:
        ranks = sorted({rank for item in items for rank in parse_ranks(str(item.get("ranks") or ""))})
    except ValueError:  # a document of another release
        ranks = []
    if not ranks or len(items) == 1:
        who = ", ".join(str(item.get("who")) for item in items)
    else:
        who = f"ranks {format_ranks(ranks)}"
    return f"{who}: each {text}" if len(ranks) > 1 else f"{who}: {text}"


def _first_bad(first: Mapping[str, Any]) -> str:
    parts = []
    if first.get("step") is not None:
        parts.append(f"step {first['step']}")
    if first.get("operation"):
        sequence = f" {first['sequence']}" if first.get("sequence") is not None else ""
        parts.append(f"{first['operation']}{sequence}" + (f" of group {first['group']}" if first.get("group") else ""))
    return ", ".join(parts)


def _times(times: Mapping[str, Any]) -> str:
    onset, detected = times.get("onset"), times.get("detected")
    text = time.strftime("%H:%M:%S", time.localtime(onset)) if onset else "unknown"
    if onset and detected:
        text += f"; seen after {max(0.0, detected - onset):.1f} s"
    if times.get("resolved"):
        text += f"; ended {time.strftime('%H:%M:%S', time.localtime(times['resolved']))}"
    return text
