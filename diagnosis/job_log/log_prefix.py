"""Takes off what carriers put in front of a line: containers, schedulers, syslog, launchers, loggers, colours.

Each tells something (rank, node, time, level); what remains is the text that the program wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...telemetry.whole_numbers import whole_number
from ..alike import asked_once
from .model import LogLine
from .ways import NOBODY_KNOWN, Origin, stripped

#: Parts of a line between carriage returns that are read: a progress bar is thousands.
MOST_PARTS = 16
ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
#: Of tqdm: description, share, bar, count, times. What stands before and behind it was written by others.
BAR = re.compile(r"\d{1,3}%\|[^|\r]{0,300}\| *[\d.]+\w{0,2}/[\d.?]+\w{0,2} \[[^\]\r]{0,160}\]?")
#: What a bar is of stands before it.
MOST_TITLE = 80
LOGFMT = re.compile(r"(?:^|\s)(?:level|lvl)=\w+ ")
PAIR = re.compile(r'(?P<key>[\w.]+)=(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>\S*))')
RANK_IN_TEXT = re.compile(r"\b[Rr](?:ank|ANK)[ =:#](\d{1,6})\b(?!\s*/)")
RANK_AND_NODE = re.compile(r"\b[Rr]ank[ =:#](\d{1,6}),? (?:on )?(?:node|host)[ =:]+([A-Za-z][\w.-]*)")
NODE_IN_TEXT = re.compile(r"\b(?:[Nn]ode|[Hh]ost(?:name)?)[ =:]+'?([A-Za-z][\w.-]*\d[\w.-]*)")
JSON_TEXT = ("message", "msg", "log", "event", "text", "body", "MESSAGE")
JSON_MORE = ("exception", "exc_info", "traceback", "stack_trace", "stack", "error", "stacktrace")


@dataclass(frozen=True, slots=True)
class _Mentions:
    """What a text names. Most name nothing: they are not searched again."""

    rank: bool
    node: bool
    rank_and_node: bool


def read_lines(origin: Origin, number: int, raw: bytes) -> Iterator[LogLine]:
    """One raw line as one or several log lines, without what carriers put in front. number: counts from 1.

    Several where it has carriage returns, bars and what is glued to them, or JSON.
    """
    text = raw.decode("utf-8", "replace")
    if "\x1b" in text:
        text = ANSI.sub("", text)
    text = text.rstrip("\r\n")
    if "\r" in text:
        parts = [part for part in text.split("\r") if part.strip()]
        for part in parts[-MOST_PARTS:]:
            yield from _read(origin, number, part)
        return
    yield from _read(origin, number, text)


def _read(origin: Origin, number: int, text: str) -> Iterator[LogLine]:
    found = stripped(origin, number, text if text.isprintable() else CONTROL.sub("", text))
    if "%|" in found.lead and BAR.search(found.lead):
        # A bar without an end of line: the traceback glued to it is a line of its own.
        yield replace(found, text=found.lead.strip(), lead="", indent=0)
        found = replace(found, lead="")
    if "%|" in found.text and (bar := BAR.search(found.text)):
        yield from _around(found, bar)
        return
    if found.text.startswith("{") and found.text.rstrip().endswith("}") and '"' in found.text:
        inner = list(_json_lines(found))
        if inner:
            yield from inner
            return
    if "msg=" in found.text and LOGFMT.search(found.text):
        yield _logfmt_line(found)
        return
    yield found


def _around(line: LogLine, bar: re.Match[str]) -> Iterator[LogLine]:
    """What was glued to a bar, before and behind it, as lines of their own; its title stays with it."""
    text, begin, end = line.text, bar.start(), bar.end()
    if begin <= MOST_TITLE and text[:begin].rstrip().endswith(":"):
        begin = 0
    if begin == 0 and end == len(text):
        yield line
        return
    for part in (text[:begin], text[begin:end], text[end:]):
        if part.strip():
            yield _within(line, part)


def _within(outer: LogLine, text: str) -> LogLine:
    """A part of a line: what its own carriers do not tell, the line's told."""
    inner = stripped(NOBODY_KNOWN, outer.number, text)
    return replace(
        inner,
        source=outer.source,
        rank=outer.rank if inner.rank is None else inner.rank,
        local_rank=outer.local_rank if inner.local_rank is None else inner.local_rank,
        node=inner.node or outer.node,
        stamp=inner.stamp or outer.stamp,
        own_stamp=inner.own_stamp or outer.own_stamp,
        level=inner.level or outer.level,
        device=inner.device or outer.device,
        group=inner.group or outer.group,
    )


def _json_lines(line: LogLine) -> Iterator[LogLine]:
    try:
        record = json.loads(line.text)
    except (ValueError, RecursionError):
        return
    if not isinstance(record, dict):
        return
    text = next((record[key] for key in JSON_TEXT if isinstance(record.get(key), str)), "")
    more = [record[key] for key in JSON_MORE if isinstance(record.get(key), str)]
    if not text and not more:
        return
    known: dict[str, Any] = {}
    level = record.get("level", record.get("levelname", record.get("severity")))
    if isinstance(level, str):
        known["level"] = level.upper()
    rank = record.get("rank", record.get("RANK", record.get("global_rank")))
    if isinstance(rank, str):
        rank = whole_number(rank)
    if isinstance(rank, int):
        known["rank"] = int(rank)
    node = record.get("host", record.get("hostname", record.get("node", record.get("node_name"))))
    if isinstance(node, str):
        known["node"] = node
    for key in ("time", "timestamp", "ts", "asctime", "@timestamp"):
        if isinstance(record.get(key), str):
            known["own_stamp"] = stripped(NOBODY_KNOWN, 0, record[key] + " x").stamp
            known["stamp"] = line.stamp or known["own_stamp"]
            break
    outer = replace(line, **{key: value for key, value in known.items() if value is not None})
    for part in "\n".join([text, *more]).split("\n"):
        yield _within(outer, part)


def _logfmt_line(line: LogLine) -> LogLine:
    """key=value pairs, as Go programs write them: the message as a line of its own."""
    pairs = {match["key"]: (match["quoted"] or match["bare"] or "") for match in PAIR.finditer(line.text)}
    known: dict[str, Any] = {"level": pairs.get("level", pairs.get("lvl", "")).upper() or line.level}
    if (rank := whole_number(pairs.get("rank", ""))) is not None:
        known["rank"] = rank
    if node := pairs.get("node") or pairs.get("host") or pairs.get("hostname"):
        known["node"] = node
    error = pairs.get("error") or pairs.get("err")
    text = pairs.get("msg", "").replace('\\"', '"')
    return _within(replace(line, **known), f"{text}: {error}" if error else text)


def rank_in(text: str) -> int | None:
    """The rank that a text names as its writer's; None where it names none."""
    match = RANK_IN_TEXT.search(text) if _mentions_of(text).rank else None
    return int(match[1]) if match else None


def whom_in(text: str) -> tuple[int, str] | None:
    """(rank, node) where a statement names both ("Rank 180, node n5, device 0"), else None. It outweighs carriers."""
    match = RANK_AND_NODE.search(text) if _mentions_of(text).rank_and_node else None
    return (int(match[1]), match[2]) if match else None


def node_in(text: str) -> str | None:
    """The node that a text names as its writer's; None where it names none."""
    match = NODE_IN_TEXT.search(text) if _mentions_of(text).node else None
    return match[1] if match else None


@asked_once
def _mentions_of(text: str) -> _Mentions:
    return _Mentions(
        rank=RANK_IN_TEXT.search(text) is not None,
        node=NODE_IN_TEXT.search(text) is not None,
        rank_and_node=RANK_AND_NODE.search(text) is not None,
    )
