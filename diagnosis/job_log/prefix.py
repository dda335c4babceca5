"""Takes off what carriers put in front of a line: containers, schedulers, syslog, launchers, loggers, colours.

Each tells something (rank, node, time, level); what remains is the text that the program wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .carriers import CARRIERS, GLOG_LEVELS
from .model import DAY_S, Line, Stamp
from .unknown_prefix import RANK, UnknownPrefix

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
#: Carriers can be nested this deep: container, syslog, srun, torchrun, logger.
DEEPEST = 10
#: Parts of a line between carriage returns that are read: a progress bar is thousands.
MOST_PARTS = 16
ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
TRACEBACK = "Traceback (most recent call last)"

#: Of tqdm: description, share, bar, count, times. What stands before and behind it was written by others.
BAR = re.compile(r"\d{1,3}%\|[^|\r]{0,300}\| *[\d.]+\w{0,2}/[\d.?]+\w{0,2} \[[^\]\r]{0,160}\]?")
#: What a bar is of stands before it.
MOST_TITLE = 80
#: Corners and edges of the frames that rich draws.
BOX = "\u2500\u2502\u256d\u256e\u256f\u2570\u2503\u250f\u2513\u2517\u251b\u2501\u250c\u2510\u2514\u2518"
#: A tag of mpirun that came between the characters of another writer's line.
TAG_WITHIN = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:")
REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\](?: \(Ray deduplicates.{0,300}\))?\s*$")
#: rich writes the place behind the message.
PLACE_BEHIND = re.compile(r"\s{3,}[\w./-]+\.\w{1,3}:\d+$")
LOGFMT = re.compile(r"(?:^|\s)(?:level|lvl)=\w+ ")
PAIR = re.compile(r'(?P<key>[\w.]+)=(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>\S*))')
ACTOR_RANK = re.compile(r"\brank[=:](\d{1,6})")
ACTOR_ADDRESS = re.compile(r"\bip=([\w.:-]+)")
#: The process group of all ranks: a rank in it is a rank of the job.
DEFAULT_GROUP = re.compile(r"default_pg|^0\b(?!\s*PG GUID [1-9])")
#: What an exception group draws to the left of its exceptions.
GROUP_MARKS = re.compile(r"(?:[|+] +)+")
#: A logger's name behind the level: "ERROR trainer - lost".
LOGGER_AFTER = re.compile(r"[A-Za-z_][\w./:<>]* +[-|] +")
NCCL_HEAD = re.compile(r"^(?P<node>[\w.-]+):\d+:\d+ \[(?P<gpu>-?\d+)\] ")

RANK_IN_TEXT = re.compile(r"\b[Rr](?:ank|ANK)[ =:#](\d{1,6})\b(?!\s*/)")
RANK_AND_NODE = re.compile(r"\b[Rr]ank[ =:#](\d{1,6}),? (?:on )?(?:node|host)[ =:]+([A-Za-z][\w.-]*)")
NODE_IN_TEXT = re.compile(r"\b(?:[Nn]ode|[Hh]ost(?:name)?)[ =:]+'?([A-Za-z][\w.-]*\d[\w.-]*)")
JSON_TEXT = ("message", "msg", "log", "event", "text", "body", "MESSAGE")
JSON_MORE = ("exception", "exc_info", "traceback", "stack_trace", "stack", "error", "stacktrace")


def read_lines(source: int, number: int, raw: bytes, learnt: UnknownPrefix | None = None) -> Iterator[Line]:
    """A line of a file as one or several: parts between carriage returns, bars and what is glued to them, JSON."""
    text = raw.decode("utf-8", "replace")
    if "\x1b" in text:
        text = ANSI.sub("", text)
    text = text.rstrip("\r\n")
    if "\r" in text:
        parts = [part for part in text.split("\r") if part.strip()]
        for part in parts[-MOST_PARTS:]:
            yield from _read(source, number, part, learnt)
        return
    yield from _read(source, number, text, learnt)


def _read(source: int, number: int, text: str, learnt: UnknownPrefix | None) -> Iterator[Line]:
    found = _strip(source, number, CONTROL.sub("", text), learnt)
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


def _around(line: Line, bar: re.Match[str]) -> Iterator[Line]:
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


def _strip(source: int, number: int, text: str, learnt: UnknownPrefix | None = None) -> Line:
    """Carriers off, from the outside in."""
    known: dict[str, Any] = {}
    at = 0
    for _ in range(DEEPEST):
        match = _carrier(text, at)
        if match is None or match.end() == at:
            if learnt is None or not (own := learnt.pattern.match(text, at)):
                break
            at = own.end()
            if told := RANK.search(own[0]):
                known.setdefault("rank", int(told[1]))
            if learnt.is_writer:
                known["writer"] = own[0]
            learnt = None
            continue
        _learn(match, known)
        at = match.end()
    # A progress bar that was not ended by a newline stands before a traceback.
    rest = text[at:]
    body = rest.lstrip(" \t")
    indent = len(rest) - len(body)
    if body[:1] in BOX and body:
        known["is_boxed"] = True
        body = body.strip(BOX + " \t")
    elif marks := GROUP_MARKS.match(body):
        indent, body = indent + marks.end(), body[marks.end() :]
    bar = body.find(TRACEBACK)
    if bar > 0 and body[0] != "{" and "\\n" not in body and not body.startswith(("Original ", "Exception Group ")):
        known["lead"] = body[:bar]
        body = body[bar:]
    if "]<std" in body:
        body = TAG_WITHIN.sub("", body)
    if body.endswith((")", "]")) and " [repeated " in body:
        body = REPEATED.sub("", body)
    if "level" in known and (logger := LOGGER_AFTER.match(body)):
        body = body[logger.end() :]
    if "level" in known and body.endswith(tuple("0123456789")) and (place := PLACE_BEHIND.search(body)):
        body = body[: place.start()]
    head = NCCL_HEAD.match(body)
    if head:
        known.setdefault("node", head["node"])
        known.setdefault("device", head["gpu"])
    inner = known.pop("inner", None)
    if inner is not None and DEFAULT_GROUP.search(known["group"]):
        known.setdefault("rank", inner)
    return Line(source=source, number=number, text=body.rstrip(), indent=indent, **known)


def _within(outer: Line, text: str) -> Line:
    """A part of a line: what its own carriers do not tell, the line's told."""
    inner = _strip(outer.source, outer.number, text)
    return replace(
        inner,
        rank=outer.rank if inner.rank is None else inner.rank,
        local_rank=outer.local_rank if inner.local_rank is None else inner.local_rank,
        node=inner.node or outer.node,
        stamp=inner.stamp or outer.stamp,
        own_stamp=inner.own_stamp or outer.own_stamp,
        level=inner.level or outer.level,
        device=inner.device or outer.device,
        group=inner.group or outer.group,
    )


def _carrier(text: str, at: int) -> re.Match[str] | None:
    start = at
    while start < len(text) and text[start] in " \t":
        start += 1
    if start == len(text):
        return None
    letter = text[start]
    kind = "0" if letter.isdigit() else "a" if letter.isalpha() else letter
    # Indented text is a frame or of a message of several lines, unless it is a rank that srun has padded.
    if start - at > 1 and kind != "0" and letter != "[":
        return None
    for pattern in CARRIERS.get(letter, ()):
        if match := pattern.match(text, start):
            return match
    return None


def _learn(match: re.Match[str], known: dict[str, Any]) -> None:
    parts = {name: value for name, value in match.groupdict().items() if value}
    if rank := parts.get("rank"):
        known["rank"] = int(rank)
    if local := parts.get("local"):
        known["local_rank"] = int(local)
    if (node := parts.get("node")) and "node" not in known:
        known["node"] = node
    if replica := parts.get("replica"):
        known.setdefault("node", f"{parts['role']}/{replica}")
        # One worker in a replica: its number is the rank.
        if parts.get("local") in (None, replica):
            known.setdefault("rank", int(replica))
    if actor := parts.get("actor"):
        if rank_told := ACTOR_RANK.search(actor):
            known["rank"] = int(rank_told[1])
        if address := ACTOR_ADDRESS.search(actor):
            known.setdefault("node", address[1])
    if device := parts.get("device"):
        known["device"] = device
    if inner := parts.get("inner"):
        known["inner"], known["group"] = int(inner), parts.get("group", "")
    if level := parts.get("level"):
        known["level"] = level.upper()
    elif glog := parts.get("glog"):
        known["level"] = GLOG_LEVELS[glog]
    if logger := parts.get("logger"):
        known["logger"] = logger
    if "h" in parts and (stamp := _stamp(_time_text(match), parts)):
        known.setdefault("stamp", stamp)
        known["own_stamp"] = stamp


def _time_text(match: re.Match[str]) -> str:
    """From the first to the last part of the time as it was printed."""
    start = min(match.start(name) for name in ("y", "mo", "mon", "d", "h") if match.groupdict().get(name))
    return match.string[start : match.end("s")]


def _stamp(text: str, parts: dict[str, str]) -> Stamp | None:
    hour, minute = int(parts["h"]), int(parts["mi"])
    second = float(parts["s"].replace(",", "."))
    if hour > 23 or minute > 59 or second >= 61:
        return None
    of_day = hour * 3600 + minute * 60 + second
    month = int(parts.get("mo", 0)) or (MONTHS.index(parts["mon"].lower()) + 1 if "mon" in parts else 0)
    day = int(parts.get("d", 0))
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return Stamp(of_day, False, text)
    before = sum((31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[: month - 1])
    return Stamp((before + day - 1) * DAY_S + of_day, True, text)


def _json_lines(line: Line) -> Iterator[Line]:
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
    if isinstance(rank, int) or (isinstance(rank, str) and rank.isdigit()):
        known["rank"] = int(rank)
    node = record.get("host", record.get("hostname", record.get("node", record.get("node_name"))))
    if isinstance(node, str):
        known["node"] = node
    for key in ("time", "timestamp", "ts", "asctime", "@timestamp"):
        if isinstance(record.get(key), str):
            known["own_stamp"] = _strip(0, 0, record[key] + " x").stamp
            known["stamp"] = line.stamp or known["own_stamp"]
            break
    outer = replace(line, **{key: value for key, value in known.items() if value is not None})
    for part in "\n".join([text, *more]).split("\n"):
        yield _within(outer, part)


def _logfmt_line(line: Line) -> Line:
    """key=value pairs, as Go programs write them: the message as a line of its own."""
    pairs = {match["key"]: (match["quoted"] or match["bare"] or "") for match in PAIR.finditer(line.text)}
    known: dict[str, Any] = {"level": pairs.get("level", pairs.get("lvl", "")).upper() or line.level}
    if (rank := pairs.get("rank", "")).isdigit():
        known["rank"] = int(rank)
    if node := pairs.get("node") or pairs.get("host") or pairs.get("hostname"):
        known["node"] = node
    error = pairs.get("error") or pairs.get("err")
    text = pairs.get("msg", "").replace('\\"', '"')
    return _within(replace(line, **known), f"{text}: {error}" if error else text)


def rank_in(text: str) -> int | None:
    match = RANK_IN_TEXT.search(text)
    return int(match[1]) if match else None


def whom_in(text: str) -> tuple[int, str] | None:
    """Rank and node where a statement names both: "Rank 180, node n5, device 0": they outweigh what carriers say."""
    match = RANK_AND_NODE.search(text)
    return (int(match[1]), match[2]) if match else None


def node_in(text: str) -> str | None:
    match = NODE_IN_TEXT.search(text)
    return match[1] if match else None
