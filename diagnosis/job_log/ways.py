"""What carriers put in front of a line, as places in it: found once for all lines that differ in their digits only.

``way_of`` walks through the carriers from the outside in; ``along`` makes the line of it. No pattern here tells one
digit from another (a test holds them to that); what depends on digits is asked of each line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..alike import asked_once
from .carriers import CARRIERS, GLOG_LEVELS
from .model import DAY_S, LineStamp, LogLine
from .unknown_prefix import RANK, UnknownPrefix

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS_BEFORE = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)
#: Carriers can be nested this deep: container, syslog, srun, torchrun, logger.
DEEPEST = 10
TRACEBACK = "Traceback (most recent call last)"
#: Corners and edges of the frames that rich draws.
BOX = "\u2500\u2502\u256d\u256e\u256f\u2570\u2503\u250f\u2513\u2517\u251b\u2501\u250c\u2510\u2514\u2518"
#: A tag of mpirun that came between the characters of another writer's line.
TAG_WITHIN = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:")
REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\](?: \(Ray deduplicates.{0,300}\))?\s*$")
#: rich writes the place behind the message.
PLACE_BEHIND = re.compile(r"\s{3,}[\w./-]+\.\w{1,3}:\d+$")
ACTOR_RANK = re.compile(r"\brank[=:](\d{1,6})")
ACTOR_ADDRESS = re.compile(r"\bip=([\w.:-]+)")
#: The process group of all ranks: a rank in it is a rank of the job.
DEFAULT_GROUP = re.compile(r"default_pg|^0\b(?!\s*PG GUID [1-9])")
#: What an exception group draws to the left of its exceptions.
GROUP_MARKS = re.compile(r"(?:[|+] +)+")
#: At the begin of a line it is bash's: with "set -x" it prints what it is about to run.
XTRACE = re.compile(r"\+{1,6} (?=\S)")
#: A logger's name behind the level: "ERROR trainer - lost".
LOGGER_AFTER = re.compile(r"[A-Za-z_][\w./:<>]* +[-|] +")
NCCL_HEAD = re.compile(r"^(?P<node>[\w.-]+):\d+:\d+ \[(?P<gpu>-?\d+)\] ")

TIME_PARTS = ("y", "mo", "mon", "d", "h")
Place = slice


@dataclass(frozen=True, slots=True)
class _Clock:
    """month: 1 to 12 where it is a word, else 0."""

    whole: Place
    hour: Place
    minute: Place
    second: Place
    month_place: Place | None
    month: int
    day: Place | None


@dataclass(slots=True)
class _Way:
    """Where in a line each thing stands that its carriers tell; None: they do not.

    ranks: of those that say less surely whose line it is, the first counts; with a local rank that has to be the same
    number, if any. text: without the blanks at its ends. has_tags: text still holds tags of mpirun.
    """

    rank: Place | None = None
    ranks: list[tuple[Place, Place | None]] = field(default_factory=list)
    local_rank: Place | None = None
    node: Place | None = None
    device: Place | None = None
    inner: Place | None = None
    group: Place | None = None
    logger: Place | None = None
    writer: Place | None = None
    clocks: list[_Clock] = field(default_factory=list)
    level: str = ""
    is_boxed: bool = False
    indent: int = 0
    lead: Place | None = None
    text: Place = field(default_factory=lambda: Place(0, 0))
    has_tags: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """Where lines come from. source: index of the file. rank, node: whose they are, where they do not say so."""

    source: int = 0
    rank: int | None = None
    node: str | None = None
    learnt: UnknownPrefix | None = None


NOBODY_KNOWN = Origin()


def stripped(origin: Origin, number: int, text: str) -> LogLine:
    """The line without what carriers put in front, with what they tell.

    text: without characters that control terminals. number: counts from 1.
    """
    way = _known_way(text) if origin.learnt is None else way_of(text, origin.learnt)
    return along(way, origin, number, text)


def along(way: _Way, origin: Origin, number: int, text: str) -> LogLine:
    """The log line of a text, where the places of rank, node, clocks and so on in it are known by ``way``."""
    rank = int(text[way.rank]) if way.rank is not None else None
    group = text[way.group] if way.group is not None else ""
    if rank is None and way.ranks:
        rank = next((int(text[of]) for of, same in way.ranks if same is None or text[same] == text[of]), None)
    if rank is None and way.inner is not None and DEFAULT_GROUP.search(group):
        rank = int(text[way.inner])
    stamp = own_stamp = None
    for clock in way.clocks:
        if (told := _stamp(text, clock)) is not None:
            stamp, own_stamp = stamp or told, told
    node = text[way.node] if way.node is not None else None
    device = text[way.device] if way.device is not None else None
    body = text[way.text]
    if way.has_tags:
        body = TAG_WITHIN.sub("", body)
        body = body[_inside(body, bool(way.level))]
        if head := NCCL_HEAD.match(body):
            node, device = node or head["node"], device or head["gpu"]
        body = body.rstrip()
    return LogLine(
        source=origin.source,
        number=number,
        text=body,
        rank=origin.rank if rank is None else rank,
        local_rank=int(text[way.local_rank]) if way.local_rank is not None else None,
        node=node or origin.node,
        stamp=stamp,
        own_stamp=own_stamp,
        level=way.level,
        logger=text[way.logger] if way.logger is not None else "",
        indent=way.indent,
        device=device,
        group=group,
        lead=text[way.lead] if way.lead is not None else "",
        writer=text[way.writer] if way.writer is not None else "",
        is_boxed=way.is_boxed,
    )


def way_of(text: str, learnt: UnknownPrefix | None = None) -> _Way:
    """Where in a line its carriers (containers, loggers, launchers ...) tell what, found from the outside in.

    learnt: a prefix that this log's lines share.
    """
    way = _Way()
    at = 0
    for _ in range(DEEPEST):
        match = _carrier(text, at)
        if match is None or match.end() == at:
            if learnt is None or not (own := learnt.pattern.match(text, at)):
                break
            if told := RANK.search(text[at : own.end()]):
                way.ranks.append((_place(told, 1, at), None))
            if learnt.is_writer:
                way.writer = _place(own, 0)
            at = own.end()
            learnt = None
            continue
        _learn(match, way)
        at = match.end()
    _to_the_text(text, at, way)
    return way


_known_way = asked_once(way_of)


def _carrier(text: str, at: int) -> re.Match[str] | None:
    start = at
    while start < len(text) and text[start] in " \t":
        start += 1
    if start == len(text):
        return None
    letter = text[start]
    # Indented text is a frame or of a message of several lines, unless it is a rank that srun has padded.
    if start - at > 1 and not letter.isdigit() and letter != "[":
        return None
    for pattern in CARRIERS.get(letter, ()):
        if match := pattern.match(text, start):
            return match
    return None


def _learn(match: re.Match[str], way: _Way) -> None:
    told = {name: _place(match, name) for name, value in match.groupdict().items() if value}
    way.rank = told.get("rank", way.rank)
    way.local_rank = told.get("local", way.local_rank)
    way.node = way.node or told.get("node")
    if replica := told.get("replica"):
        way.node = way.node or Place(told["role"].start, replica.stop)
        # One worker in a replica: its number is the rank.
        way.ranks.append((replica, told.get("local")))
    if actor := told.get("actor"):
        if rank := ACTOR_RANK.search(match["actor"]):
            way.rank = _place(rank, 1, actor.start)
        if address := ACTOR_ADDRESS.search(match["actor"]):
            way.node = way.node or _place(address, 1, actor.start)
    way.device = told.get("device", way.device)
    if inner := told.get("inner"):
        way.inner, way.group = inner, told.get("group")
    if "level" in told:
        way.level = match["level"].upper()
    elif "glog" in told:
        way.level = GLOG_LEVELS[match["glog"]]
    way.logger = told.get("logger", way.logger)
    if "h" in told:
        way.clocks.append(
            _Clock(
                # From the first to the last part of the time as it was printed.
                whole=Place(min(told[name].start for name in TIME_PARTS if name in told), match.end("s")),
                hour=told["h"],
                minute=told["mi"],
                second=told["s"],
                month_place=told.get("mo"),
                month=MONTHS.index(match["mon"].lower()) + 1 if "mon" in told else 0,
                day=told.get("d"),
            )
        )


def _to_the_text(text: str, at: int, way: _Way) -> None:
    """Behind the last carrier: indents, frames around it, what is glued to it."""
    begin, end = at + _blanks(text[at:]), len(text)
    way.indent = begin - at
    body = text[begin:]
    if body[:1] in BOX and body:
        way.is_boxed = True
        inner = body.strip(BOX + " \t")
        begin += body.find(inner)
        end, body = begin + len(inner), inner
    elif begin == at and (traced := XTRACE.match(body)):
        way.level = "TRACE"
        begin, body = begin + traced.end(), body[traced.end() :]
    elif marks := GROUP_MARKS.match(body):
        way.indent += marks.end()
        begin, body = begin + marks.end(), body[marks.end() :]
    # A progress bar that was not ended by a newline stands before a traceback.
    bar = body.find(TRACEBACK)
    if bar > 0 and body[0] != "{" and "\\n" not in body and not body.startswith(("Original ", "Exception Group ")):
        way.lead = Place(begin, begin + bar)
        begin, body = begin + bar, body[bar:]
    if "]<std" in body and TAG_WITHIN.search(body):
        way.has_tags = True
        way.text = Place(begin, end)
        return
    inside = _inside(body, bool(way.level))
    body, begin = body[inside], begin + inside.start
    way.text = Place(begin, begin + len(body.rstrip()))
    if head := NCCL_HEAD.match(body):
        way.node = way.node or _place(head, "node", begin)
        way.device = way.device or _place(head, "gpu", begin)


def _inside(body: str, has_level: bool) -> Place:
    """The text without what loggers and Ray put around it."""
    begin, end = 0, len(body)
    if body.endswith((")", "]")) and " [repeated " in body:
        end = len(REPEATED.sub("", body))
    if has_level and (logger := LOGGER_AFTER.match(body, 0, end)):
        begin = logger.end()
    if has_level and body[begin:end].endswith(tuple("0123456789")) and (place := PLACE_BEHIND.search(body[begin:end])):
        end = begin + place.start()
    return Place(begin, end)


def _stamp(text: str, clock: _Clock) -> LineStamp | None:
    hour, minute = int(text[clock.hour]), int(text[clock.minute])
    second = float(text[clock.second].replace(",", "."))
    if hour > 23 or minute > 59 or second >= 61:
        return None
    of_day = hour * 3600 + minute * 60 + second
    month = (int(text[clock.month_place]) if clock.month_place is not None else 0) or clock.month
    day = int(text[clock.day]) if clock.day is not None else 0
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return LineStamp(of_day, False, text[clock.whole])
    return LineStamp((DAYS_BEFORE[month - 1] + day - 1) * DAY_S + of_day, True, text[clock.whole])


def _place(match: re.Match[str], name: str | int, offset: int = 0) -> Place:
    return Place(match.start(name) + offset, match.end(name) + offset)


def _blanks(text: str) -> int:
    return len(text) - len(text.lstrip(" \t"))
