"""Takes off what carriers put in front of a line: containers, schedulers, syslog, launchers, loggers, colours.

Each tells something (rank, node, time, level); what remains is the text that the program wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .model import DAY_S, Line, Stamp

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
#: Carriers can be nested this deep: container, syslog, srun, torchrun, logger.
DEEPEST = 10
#: Parts of a line between carriage returns that are read: a progress bar is thousands.
MOST_PARTS = 16
ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
LEVEL = r"TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|ERR|CRITICAL|FATAL|SEVERE"
QUIET_LEVELS = frozenset({"TRACE", "DEBUG", "INFO", "NOTICE"})
LOUD_LEVELS = frozenset({"ERROR", "ERR", "CRITICAL", "FATAL", "SEVERE"})
GLOG_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL", "C": "CRITICAL", "V": "DEBUG"}
CLOCK = r"(?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d(?:[.,]\d{1,9})?)"
ZONE = r"(?:\s?(?:Z\b|UTC\b|[+-]\d\d:?\d\d\b))?"
DATE = r"(?P<y>\d{4})[-/](?P<mo>\d\d)[-/](?P<d>\d\d)"
TRACEBACK = "Traceback (most recent call last)"

#: What a carrier can begin with (a bracket, 0 for a digit, a for a letter, a dash), and its pattern. Tried in turn till
#: none matches. Named groups: rank, local, node, level, logger, and the parts of a time.
PATTERNS: tuple[tuple[str, str], ...] = (
    # kubectl logs --prefix, stern, docker compose
    ("[", r"\[pod/(?P<node>[\w.-]+)/[\w.-]+\] ?"),
    ("a", r"(?P<node>[a-z][\w.-]*-\d+)\s+\| ?"),
    # CRI: after its time stamp
    ("a", r"(?:stdout|stderr) [FP] "),
    # mpirun --tag-output; srun -l; torchrun --tee and c10d
    ("[", r"\[\d+,(?P<rank>\d{1,6})\]<std(?:out|err)>: ?"),
    ("0", r"(?P<rank>\d{1,6}): ?(?!\d\d:\d\d)"),
    ("[", r"\[default(?P<local>\d{1,4})\]: ?"),
    ("[", r"\[(?:[Rr]ank|RANK)[ _:]?(?P<rank>\d{1,6})\]:? ?"),
    ("[", r"\[(?:trainer|worker)(?P<local>\d{1,4})\]: ?"),
    ("a", r"(?:[Rr]ank|RANK)[ _]?(?P<rank>\d{1,6}) ?[:|] ?"),
    ("(", r"\((?:rank|RANK)[ =](?P<rank>\d{1,6})\) ?"),
    # Ray and vLLM
    ("(", r"\((?!rank)[\w:.<>\[\]-]+(?: rank=(?P<rank>\d{1,6}))? pid=\d+(?:, ip=(?P<node>[\w.:-]+))?\) ?"),
    # glog and c10d: [E224 19:02:08.000 file.cpp:697], E0224 19:02:08.0 123 file.cc:1]
    (
        "[a",
        rf"\[?(?P<glog>[IWEFCV])(?:(?P<mo>\d\d?)(?P<d>\d\d) {CLOCK})?(?: +\d+)? (?P<logger>[\w./-]+\.\w+:\d+)\] ?",
    ),
    # syslog: <priority>, time, host, program[pid]:
    ("<", r"<\d{1,3}>(?:\d )?"),
    ("a", rf"(?P<mon>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s+(?P<d>\d\d?) {CLOCK}(?: \d{{4}})? "),
    (
        "0a",
        r"(?P<node>[A-Za-z][\w.-]*|\d+\.\d+\.\d+\.\d+) (?!slurmstepd|kernel|srun|slurmctld)(?:[\w./@-]+)\[\d+\]: ",
    ),
    ("a", r"(?P<node>[A-Za-z][\w.-]*) (?:(?=(?:slurmstepd|slurmd|srun|slurmctld)(?:\[\d+\])?: )|kernel: )"),
    ("a", r"kernel: "),
    ("a", r"(?:slurmstepd|slurmd)\[\d+\]: (?=error)"),
    # times of loggers, in brackets or not
    ("[(0", rf"[\[(]?{DATE}[T _-]{CLOCK}{ZONE}[\])]?,?(?:\s*[|:-](?=\s))?\s*"),
    ("[(", rf"[\[(](?P<mo>\d\d)/(?P<d>\d\d)/(?P<y>\d\d(?:\d\d)?),? {CLOCK}[\])]\s*"),
    ("0", rf"(?P<mo>\d\d)[/-](?P<d>\d\d)(?:[/-]\d\d(?:\d\d)?)? {CLOCK}(?:\s*[|:-](?=\s))?\s+"),
    ("[(", rf"[\[(]{CLOCK}{ZONE}[\])](?:\s*[|:-](?=\s))?\s*"),
    ("0", rf"{CLOCK}(?:\s*[|:-])?\s+(?=\S)"),
    ("[", r"\[\s*\d+\.\d{6}\] "),
    # levels
    ("[a", rf"\[?(?P<level>{LEVEL})\]?(?:[:|\s-]|$)\s*(?:(?<=:)(?P<logger>[\w.]+):)?\s*"),
    ("[", rf"\[(?P<logger>[\w./<>-]+)\]\s?\[(?P<level>{LEVEL})\](?:\s?[:-])?\s*"),
    (
        "0a-",
        rf"(?:- )?(?P<logger>[\w./]+)(?:\s+[-|]|\s*:)\s+\[?(?P<level>{LEVEL})\]?(?:\s+[-|:])?(?:\s+|$)",
    ),
    ("[", rf"\[(?P<level>{LEVEL})\s*\]\s*"),
    ("[", r"\[(?P<level>debug|info|notice|warn|warning|error|fatal|critical)\]:?\s+"),
    ("[", r"\[(?P<logger>[\w./-]+\.py):\d+(?::[\w<>]+)?\]:?\s*"),
    ("0a", r"(?P<logger>[\w./-]+\.py):\d+\]\s*"),
    ("[", r"\[(?:PG|pg) (?:ID )?[^\]]{0,80}?\b(?:Rank|rank) (?P<rank>\d{1,6})\]\s*"),
    # pdsh, deepspeed, clush: a host with a number in its name
    (
        "a",
        r"(?![\w.]*(?:Error|Exception|Timeout|Warning|Interrupt)\b)(?!(?:python|rank|step|epoch|loss|iter|cuda|gpu)_?\d)"
        r"(?P<node>[a-zA-Z][a-zA-Z.-]*[_.-]?\d[\w.-]*): (?!error|line )(?=\S)",
    ),
)
CARRIERS: dict[str, tuple[re.Pattern[str], ...]] = {
    start: tuple(re.compile(pattern) for starts, pattern in PATTERNS if start in starts) for start in "[(<0a-"
}
#: What an exception group draws to the left of its exceptions.
GROUP_MARKS = re.compile(r"(?:[|+] +)+")
#: A logger's name behind the level: "ERROR trainer - lost".
LOGGER_AFTER = re.compile(r"[A-Za-z_][\w./]* +[-|] +")
NCCL_HEAD = re.compile(r"(?P<node>[\w.-]+):\d+:\d+ \[(?P<gpu>-?\d+)\] ")

RANK_IN_TEXT = re.compile(r"\b[Rr](?:ank|ANK)[ =:#](\d{1,6})\b(?!\s*/)")
RANK_AND_NODE = re.compile(r"\b[Rr]ank[ =:#](\d{1,6}),? (?:on )?(?:node|host)[ =:]+([A-Za-z][\w.-]*)")
NODE_IN_TEXT = re.compile(r"\b(?:[Nn]ode|[Hh]ost(?:name)?)[ =:]+'?([A-Za-z][\w.-]*\d[\w.-]*)")
JSON_TEXT = ("message", "msg", "log", "event", "text", "body", "MESSAGE")
JSON_MORE = ("exception", "exc_info", "traceback", "stack_trace", "stack", "error", "stacktrace")


def read_lines(source: int, number: int, raw: bytes) -> Iterator[Line]:
    """A line of a file as one or several: parts between carriage returns, and what a JSON record holds."""
    text = raw.decode("utf-8", "replace")
    if "\x1b" in text:
        text = ANSI.sub("", text)
    text = text.rstrip("\r\n")
    if "\r" in text:
        parts = [part for part in text.split("\r") if part.strip()]
        for part in parts[-MOST_PARTS:]:
            yield from _read(source, number, part)
        return
    yield from _read(source, number, text)


def _read(source: int, number: int, text: str) -> Iterator[Line]:
    found = _strip(source, number, CONTROL.sub("", text))
    if found.text.startswith("{") and found.text.rstrip().endswith("}") and '"' in found.text:
        inner = list(_json_lines(found))
        if inner:
            yield from inner
            return
    yield found


def _strip(source: int, number: int, text: str) -> Line:
    """Carriers off, from the outside in."""
    known: dict[str, Any] = {}
    at = 0
    for _ in range(DEEPEST):
        match = _carrier(text, at)
        if match is None or match.end() == at:
            break
        _learn(match, known)
        at = match.end()
    # A progress bar that was not ended by a newline stands before a traceback.
    rest = text[at:]
    body = rest.lstrip(" \t")
    indent = len(rest) - len(body)
    if marks := GROUP_MARKS.match(body):
        indent, body = indent + marks.end(), body[marks.end() :]
    bar = body.find(TRACEBACK)
    if bar > 0 and body[0] != "{" and "\\n" not in body and not body.startswith(("Original ", "Exception Group ")):
        body = body[bar:]
    if "level" in known and (logger := LOGGER_AFTER.match(body)):
        body = body[logger.end() :]
    head = NCCL_HEAD.match(body)
    if head and "node" not in known:
        known["node"] = head["node"]
    return Line(source=source, number=number, text=body.rstrip(), indent=indent, **known)


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
    for pattern in CARRIERS.get(kind, ()):
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
        inner = _strip(line.source, line.number, part)
        yield replace(
            inner,
            rank=outer.rank if inner.rank is None else inner.rank,
            local_rank=outer.local_rank if inner.local_rank is None else inner.local_rank,
            node=inner.node or outer.node,
            stamp=inner.stamp or outer.stamp,
            own_stamp=inner.own_stamp or outer.own_stamp,
            level=inner.level or outer.level,
        )


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
