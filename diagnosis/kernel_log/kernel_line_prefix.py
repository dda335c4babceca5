"""Takes a kernel line out of whatever wrapped it: dmesg, /dev/kmsg, pstore, syslog, journald, containers, Kubernetes.

Wrappers nest (a syslog line inside a container's JSON inside ``kubectl logs --prefix``), so they are taken off from the
left until none is left. What each one tells is kept: the innermost host, of either clock the outermost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from .stamps import Calendar, parse_iso, parse_klog, parse_month_first, parse_weekday_first

#: No real line has more wrappers; garbage might.
MAX_WRAPPERS = 8


@dataclass(slots=True)
class UnwrappedLine:
    """``text``: what is left. ``time_s``: Unix seconds. ``tag``: the program of a syslog line, "" for the kernel.

    is_continuation: a key=value line that /dev/kmsg gives after its message; says nothing by itself.
    is_decoded: the text does not stand in the line as it is.
    """

    text: str
    time_s: float | None = None
    monotonic_s: float | None = None
    host: str = ""
    tag: str = ""
    is_continuation: bool = False
    is_decoded: bool = False


_Strip = Callable[[UnwrappedLine, "re.Match[str]", Calendar], None]


def unwrap(text: str, calendar: Calendar) -> UnwrappedLine:
    """The kernel's own text of a line, with time and host as far as its wrappers tell them.

    At most ``MAX_WRAPPERS`` are taken off. calendar: for dates without a year or zone.
    """
    if "\x1b" in text:  # dmesg --color, saved
        text = _COLOUR.sub("", text)
    line = UnwrappedLine(text=text)
    for _ in range(MAX_WRAPPERS):
        rest = line.text.lstrip(" \t\x00\ufeff")
        strippers = _BY_FIRST.get(rest[:1])
        if strippers is None:
            strippers = _DIGITS if rest[:1].isdigit() else _WORDS
            if strippers is _WORDS and not _ANY_WORD.match(rest):
                break  # the message itself, in most lines
        for pattern, take in strippers:
            found = pattern.match(rest)
            if found is not None:
                line.text = rest[found.end() :]
                take(line, found, calendar)
                break
        else:
            break
    if line.text.startswith(" ") and _CONTINUATION.match(line.text):
        line.is_continuation = True
    return line


def _seen(line: UnwrappedLine, time_s: float | None) -> None:
    if line.time_s is None:
        line.time_s = time_s


def _nothing(line: UnwrappedLine, found: re.Match[str], calendar: Calendar) -> None:
    pass


def _monotonic(line: UnwrappedLine, found: re.Match[str], calendar: Calendar) -> None:
    if line.monotonic_s is None:
        line.monotonic_s = float(found["mono"])


def _kmsg(line: UnwrappedLine, found: re.Match[str], calendar: Calendar) -> None:
    line.monotonic_s = int(found["us"]) / 1e6


def _iso(line: UnwrappedLine, found: re.Match[str], calendar: Calendar) -> None:
    _seen(line, parse_iso(found["iso"], calendar))


def _weekday(line: UnwrappedLine, found: re.Match[str], calendar: Calendar) -> None:
    _seen(line, parse_weekday_first(found["date"], calendar))


def _month(line: UnwrappedLine, found: re.Match[str], calendar: Calendar) -> None:
    _seen(line, parse_month_first(found["date"], calendar))


def _klog(line: UnwrappedLine, found: re.Match[str], calendar: Calendar) -> None:
    _seen(line, parse_klog(found["date"], calendar))


def _unix(line: UnwrappedLine, found: re.Match[str], calendar: Calendar) -> None:
    _seen(line, float(found["unix"]))


def _tag(line: UnwrappedLine, found: re.Match[str], calendar: Calendar) -> None:
    line.host = found["host"] or line.host
    line.tag = "" if found["tag"] == "kernel" else found["tag"]


def _host(line: UnwrappedLine, found: re.Match[str], calendar: Calendar) -> None:
    line.host = found["host"]


def _rfc5424(line: UnwrappedLine, found: re.Match[str], calendar: Calendar) -> None:
    _seen(line, parse_iso(found["iso"], calendar) if found["iso"] != "-" else None)
    line.host = "" if found["host"] == "-" else found["host"]
    line.tag = "" if found["tag"] in ("-", "kernel") else found["tag"]


def _json(line: UnwrappedLine, found: re.Match[str], calendar: Calendar) -> None:
    """Journald (``-o json``), Docker and the usual shippers. A cut document leaves its text as it is."""
    whole = found[0] + line.text
    line.is_decoded = True
    try:
        record = json.loads(whole)
    except (ValueError, RecursionError):
        inner = _CUT_JSON.search(whole)
        line.text = inner["text"].replace("\\n", "\n").replace('\\"', '"').rstrip("\n") if inner else whole
        return
    message = next((record[name] for name in _MESSAGES if name in record), "")
    if isinstance(message, list):  # journald gives bytes that are not UTF-8 as numbers
        message = bytes(n & 255 for n in message if isinstance(n, int)).decode("utf-8", "replace")
    line.text = message.rstrip("\n") if isinstance(message, str) else ""
    for name, per_second in (("__REALTIME_TIMESTAMP", 1e6), ("_SOURCE_REALTIME_TIMESTAMP", 1e6)):
        if _is_number(record.get(name)):
            _seen(line, float(record[name]) / per_second)
    for name in ("_SOURCE_BOOTTIME_TIMESTAMP", "_SOURCE_MONOTONIC_TIMESTAMP", "__MONOTONIC_TIMESTAMP"):
        if line.monotonic_s is None and _is_number(record.get(name)):
            line.monotonic_s = float(record[name]) / 1e6
    for name in ("time", "timestamp", "@timestamp"):
        if isinstance(record.get(name), str):
            _seen(line, parse_iso(record[name], calendar))
    for name in ("_HOSTNAME", "hostname", "host"):
        if isinstance(record.get(name), str):
            line.host = record[name]
            break
    tag = record.get("SYSLOG_IDENTIFIER")
    line.tag = tag if isinstance(tag, str) and tag != "kernel" else ""


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, str) and value.isascii() and value.isdigit())


_MESSAGES = ("MESSAGE", "log", "message", "msg")
_CUT_JSON = re.compile(r'"(?:MESSAGE|log|message|msg)"\s*:\s*"(?P<text>(?:[^"\\]|\\.)*)')
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,12}[mK]")
_CONTINUATION = re.compile(r" [A-Z_]+=\S")

_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_TIME = r"\d\d:\d\d:\d\d(?:\.\d{1,9})?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_WEEKDAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_LEVEL = r"(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug)"

_Stripper = tuple["re.Pattern[str]", _Strip]


def _strippers(*pairs: tuple[str, _Strip]) -> tuple[_Stripper, ...]:
    return tuple((re.compile(pattern), take) for pattern, take in pairs)


_BRACKET = _strippers(
    (r"\[ *(?P<mono>\d{1,12}\.\d{1,9})\](?:\[ *[TC]\d+\]| \[ *[TC]\d+\])?(?: |\Z)?", _monotonic),
    (rf"\[(?P<date>{_WEEKDAY} {_MONTH} +\d{{1,2}} {_TIME} \d{{4}})\] ?", _weekday),
    (rf"\[(?P<date>{_MONTH} +\d{{1,2}} \d{{4}} {_TIME})\] ?", _month),
    (rf"\[(?P<date>{_MONTH} +\d{{1,2}} \d\d:\d\d(?::\d\d)?)\] ?", _month),
    (rf"\[(?P<iso>{_ISO})\] ?", _iso),
    (r"\[ *\+ *\d+\.\d+\] ?", _nothing),
    (r"\[\.\.\.\] ?", _nothing),
    (r"\[pod/[^\]\s]{1,300}\] ?", _nothing),
    (rf"\[(?P<host>[A-Za-z][\w.-]{{1,254}})\] (?=\[ *\d{{1,12}}\.\d{{1,9}}\]|\[{_WEEKDAY} |<\d|{_MONTH} +\d)", _host),
)
_ANGLE = _strippers(
    (
        rf"<\d{{1,3}}>1 (?P<iso>{_ISO}|-) (?P<host>\S{{1,255}}) (?P<tag>\S{{1,128}}) \S+ \S+ (?:-|(?:\[[^\]]*\])+) ?",
        _rfc5424,
    ),
    (r"<\d{1,3}> ?(?=\S)", _nothing),
)
#: What only a kernel's line, or the wrapper of one, begins with: before it a tool may have put a file or a host.
_BEGINS = (
    rf"(?:\[ *\d{{1,12}}\.\d{{1,9}}\]|\[{_WEEKDAY} {_MONTH} |{_MONTH} +\d{{1,2}} \d\d:|{_WEEKDAY} {_MONTH} +\d|"
    r"<\d{1,3}>|"
    r"\d{4}-\d\d-\d\d[T ]\d\d:|\{\"|\d{1,3},\d{1,19},\d{1,19},|(?:kern|user|daemon)\s{0,8}[.:]\s?[a-z]{3,6}\s{0,8}:|"
    r"kernel: |NVRM: |nvidia|amdgpu |mlx[45]_|INFO: task |Out of memory|Memory cgroup|oom-kill:|BUG: |Kernel panic|"
    r"EXT4-fs |XFS \(|nfs: server |LustreError|Lustre: |nvme |pcieport |watchdog: |rcu: |EDAC |mce: |"
    r"\[Hardware Error\]|i915 |xe \d|habanalabs )"
)
#: ``grep -Hn``: file, line, and ":" behind both, or "-" in lines of context; a blank never stands in between.
_GREP = rf"[^\s\[<{{:][^\s:\[<{{]{{0,200}}[:-](?:\d{{1,9}}[:-])?(?={_BEGINS})"
#: Words that kernel lines themselves have in such a place: ``watchdog: BUG: ...``.
_SUBSYSTEM = (
    r"watchdog|mce|rcu|kernel|nvidia|NVRM|nvme|traps|EDAC|INFO|BUG|NMI|perf|lockdep|amdgpu|drm|MCE|systemd|ACPI|GHES"
)
#: pdsh, clush, ansible and dsh: the host, and a blank before its line.
_EACH_HOST = (
    rf"(?:\[\d{{1,6}}\] )?(?!(?:{_SUBSYSTEM})\b)(?P<host>[A-Za-z0-9][\w.-]{{0,254}}) ?(?::|\||>>) {{1,8}}(?={_BEGINS})"
)
#: Pods and containers, as stern and kubetail write them: a name, or two.
_POD = (
    r"[a-z0-9][a-z0-9.-]{0,252} (?:[a-z0-9][a-z0-9-]{0,62} )?"
    rf"(?=\[ *\d{{1,12}}\.\d{{1,9}}\]|\[{_WEEKDAY} |<\d{{1,3}}>)"
)
_DIGITS = _strippers(
    (r"\d{1,3},\d{1,19},(?P<us>\d{1,19}),[^;]{0,100};", _kmsg),
    (rf"(?P<iso>{_ISO})(?: +(?:stdout|stderr) [FP])?(?::| |\Z)", _iso),
    (r"1 (?P<iso>-|\d\S{18,40}) (?P<host>\S{1,255}) (?P<tag>\S{1,128}) \S+ \S+ (?:-|(?:\[[^\]]*\])+) ?", _rfc5424),
    (r"(?P<unix>1\d{9}(?:\.\d{1,9})) ", _unix),
    (r"(?P<clock>\d\d:\d\d:\d\d(?:[.,]\d{1,9})?) ", _nothing),
    (r"\d{1,9}[:-](?=" + _BEGINS + ")", _nothing),
    (_GREP, _nothing),
    (_EACH_HOST, _host),
)
#: ``host program[pid]: ``; the program is asked to be a known one, else any "word word: text" would lose its beginning.
_PROGRAM = (
    r"(?P<tag>kernel|nvidia-[a-z-]+|nv-[a-z-]+|systemd[a-z-]*|kubelet|containerd|dockerd|opensm|rasdaemon|mcelog|mmfsd?|"
    r"rpc\.[a-z]+|smartd|NetworkManager|dmesg)"
)
_WORDS = _strippers(
    (rf"(?P<date>{_MONTH} +\d{{1,2}}(?: \d{{4}})? {_TIME}(?: \d{{4}})?):? ", _month),
    (rf"(?P<date>{_WEEKDAY} {_MONTH} +\d{{1,2}} {_TIME} \d{{4}}):? ", _weekday),
    (rf"{_WEEKDAY} (?P<iso>{_ISO})(?: [A-Z]{{2,5}})? ", _iso),
    (rf"(?:kern|user|daemon|syslog|auth)\s{{0,8}}[.:]\s{{0,2}}{_LEVEL}\s{{0,8}}:\s*", _nothing),
    (r"[IWEF](?P<date>\d{4} \d\d:\d\d:\d\d\.\d{1,9}) +\d{1,9} [\w.-]{1,100}:\d{1,6}\] ", _klog),
    (
        rf"(?:(?P<host>[A-Za-z0-9](?:[\w.:-]{{0,253}}[\w.-])?):? )?(?:(?:kern|user|daemon)\.{_LEVEL} )?"
        rf"{_PROGRAM}(?:\[\d{{1,10}}\])?: ?",
        _tag,
    ),
    (r"(?P<host>[A-Za-z0-9][\w.-]{0,254}) (?P<tag>kernel) ?(?=\[ *\d)", _tag),
    (_GREP, _nothing),
    (_EACH_HOST, _host),
    (_POD, _nothing),
)
#: Whether any of them matches, asked once.
_ANY_WORD = re.compile("|".join(f"(?:{re.sub(r'[(][?]P<[a-z]+>', '(?:', pattern.pattern)})" for pattern, _ in _WORDS))
_BRACE = _strippers((r"\{(?=\s*\")", _json))
_BY_FIRST: dict[str, tuple[_Stripper, ...]] = {"[": _BRACKET, "<": _ANGLE, "{": _BRACE}
