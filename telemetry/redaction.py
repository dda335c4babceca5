"""Secrets in text that may leave the node: found by their shape or by the name before them, and removed.

Pure, linear in the text, idempotent. What secrets look like and are called is in ``redaction.toml``. It errs towards
removing: a line that loses a harmless word can still be read, a password that was sent cannot be called back. A text
that has to be cut is cut between words (``ring_layout.cut_text``): half a secret would not be known as one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from .unseen import as_seen, views

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

REMOVED = "[removed]"
#: Stands for each character of a secret while others are looked for: of private use, so no text means anything by it.
_HIDDEN = "\ue000"
_HIDDEN_RUN = re.compile(_HIDDEN + "+")
#: Characters before the name of a YAML entry, at most.
_INDENT = 64

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
#: A name and what joins it to its value; a flag's value may come after a space.
_NAME = re.compile(
    r"""(?<![\w.\-$])(?P<dash>--?)?(?P<name>[A-Za-z][\w.\-]{0,63})\\{0,4}["']?"""
    r"(?:[ \t]{0,3}(?P<sep>=>|:=|[:=])[ \t]{0,3}|(?(dash)[ \t]{1,3}(?!-)|(?!)))"
)
#: A value: quoted, quoted inside a quoted text, quoted up to where the text was cut, or bare. A bare one holds a mark
#: of punctuation only if neither the end of the text nor another name comes after it.
_VALUE = re.compile(
    r"""
      \\{1,4}(?P<inner>["'])(?P<escaped>[^\n\\]{1,4096}?)\\{1,4}(?P=inner)
    | "(?P<double>(?:[^"\\\n]|\\.){1,8192})"
    | '(?P<single>(?:[^'\\\n]|\\.){1,8192})'
    | "(?P<open_double>(?:[^"\\\n]|\\.){1,8192}\\?)\Z
    | '(?P<open_single>(?:[^'\\\n]|\\.){1,8192}\\?)\Z
    | ["']?(?P<bare>\[removed\]|<[^<>\s]{0,256}>|
        (?:[^\s"',;&|)}\]<>\\[]|[,;&|)}\]<>\\[](?!$|["'\s)}\],;&]|[\w.\-]{1,64}["']?[=:]))+)
    """,
    re.VERBOSE,
)
_OPEN = frozenset({"open_double", "open_single"})
#: The same in words: "token is …", "API key …".
_TOLD = re.compile(
    r"(?i)\b(?:password|passwd|passphrase|secret|token|api[ _-]?key|access[ _-]?key|credentials?)"
    r"[ \t]{1,3}(?:(?:is|was|value|of|set to|=|:)[ \t]{1,3})?[\"'`(<]?(?P<secret>[A-Za-z0-9_+/=.~-]{16,})"
)
#: The first word on the line below its name.
_NEXT_LINE = re.compile(
    r"""(?<![\w.\-$])(?P<name>[A-Za-z][\w.\-]{0,63})["']?[ \t]{0,3}[:=][ \t]{0,3}(?:\r\n?|\n)"""
    r"""[ \t]{0,8}["']?(?P<secret>[^\s"'<>{}\[\]()\ue000][^\s"']{7,255})["']?(?=\s|\Z)"""
)
_PLACEHOLDER = re.compile(
    r"(?i)(?:\$\{?\w*\}?|\$\(.*|\$\{\{.*|\{\{?.*\}?\}|<.*>?|%\(?\w*\)?s?|\*+|x{3,}|\.{3,}|-+|none|null|nil|true|false|yes|no"
    r"|undefined|unset|not[ _]?set|empty|missing|optional\[.*|str|string|bytes|int|bool|redacted|hidden|masked)\Z"
)
_CODE = re.compile(r"[A-Za-z_][\w.]{0,128}[(\[]|(?:[A-Za-z_]\w{0,64}\.){1,8}[A-Za-z_]\w{0,64}\Z")
_RUNS_TEXT = re.compile(r"-[a-z]*c")
_CHUNK = re.compile(r"[A-Za-z0-9]+")
_TURN = re.compile(r"(?<=[A-Za-z])\d|(?<=\d)[A-Za-z]|(?<=[a-z])[A-Z]")


class _Naming(Enum):
    HARMLESS = 0
    #: The value is removed if it looks random.
    WEAK = 1
    SECRET = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """A secret that is known by itself. hints: small letters, one of which must be in the text (none: always try).

    Its named groups are what is removed, or all of it without any.
    """

    name: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Names:
    """The words of ``redaction.toml``, section names."""

    words: frozenset[str]
    endings: tuple[str, ...]
    rows: tuple[str, ...]
    about: frozenset[str]
    token_words: frozenset[str]
    token_before: frozenset[str]
    token_model: frozenset[str]
    weak: frozenset[str]
    #: One of these is in every text that holds such a name, in small letters.
    hints: tuple[str, ...]


@cache
def shapes() -> tuple[Shape, ...]:
    """What secrets look like by themselves, from redaction.toml."""
    return tuple(
        Shape(entry["name"], tuple(entry["hints"]), re.compile(entry["pattern"])) for entry in _rules()["shape"]
    )


@cache
def names() -> Names:
    """Words of keys whose values are secrets, from redaction.toml."""
    raw = _rules()["names"]
    parts = {*raw["words"], *raw["endings"], *raw["token_words"], *raw["weak"]} | {
        row.rpartition(" ")[2] for row in raw["rows"]
    }
    return Names(
        words=frozenset(raw["words"]),
        endings=tuple(raw["endings"]),
        rows=tuple(f" {row} " for row in raw["rows"]),
        about=frozenset(raw["about"]),
        token_words=frozenset(raw["token_words"]),
        token_before=frozenset(raw["token_before"]),
        token_model=frozenset(raw["token_model"]),
        weak=frozenset(raw["weak"]),
        hints=tuple(_shortest(parts)),
    )


@cache
def _hints() -> tuple[str, ...]:
    """In small letters, one of these is in every text that holds a secret, but for the shapes that have no hints."""
    return tuple(_shortest({*names().hints, *(hint for shape in shapes() for hint in shape.hints)}))


@cache
def shapes_without_hints() -> tuple[Shape, ...]:
    """Shapes that no fixed text announces: their patterns are tried on every text."""
    return tuple(shape for shape in shapes() if not shape.hints)


def redact(text: str) -> str:
    """The text without its secrets, each replaced by ``[removed]``; the same object if it holds none."""
    hidden = _hide(text)
    return text if hidden is text else _HIDDEN_RUN.sub(REMOVED, hidden)


def redact_bytes(content: bytes) -> bytes:
    """Text of unknown encoding with each secret replaced by ``[removed]``; what is not UTF-8 stays as it is."""
    text = content.decode("utf-8", "surrogateescape")
    left = redact(text)
    return content if left is text else left.encode("utf-8", "surrogateescape")


def mask(text: str) -> str:
    """The text with each secret replaced by something of just as many characters."""
    hidden = _hide(text)
    return text if hidden is text else _HIDDEN_RUN.sub(lambda run: _mask_of(len(run[0])), hidden)


def mask_bytes(content: bytes) -> bytes:
    """Text inside of a binary file with each secret replaced by something of just as many bytes."""
    text = content.decode("utf-8", "surrogateescape")
    hidden = _hide(text)
    if hidden is text:
        return content

    def cover(run: re.Match[str]) -> str:
        return _mask_of(len(text[run.start() : run.end()].encode("utf-8", "surrogateescape")))

    return _HIDDEN_RUN.sub(cover, hidden).encode("utf-8", "surrogateescape")


def redact_data(value: Any, clean: Callable[[str], str] = redact) -> Any:
    """JSON data (dicts, lists, tuples, texts) with its texts cleaned by ``clean``.

    Texts that stand under a secret's name are removed whole.
    """
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {
            clean(name): REMOVED if isinstance(item, str) and is_secret(name, item) else redact_data(item, clean)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(redact_data(item, clean) for item in value)
    return value


def is_secret(name: str, value: str) -> bool:
    """Whether a value that stands under this name is a secret."""
    return _is_secret(as_seen(name), value)


def redact_command(arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments of a command line without secrets; a value may stand in the argument after its flag."""
    left: list[str] = []
    flag = ""
    for argument in arguments:
        name, sep, value = argument.partition("=")
        if _RUNS_TEXT.fullmatch(flag):
            left.append(argument)  # of "bash -c": a line of words, and no value
        elif flag and not argument.startswith("-") and _is_secret(flag, argument):
            left.append(REMOVED)
        elif sep and _is_secret(name, value):
            left.append(f"{name}={REMOVED}")
        elif flag in ("-u", "--user", "--proxy-user") and ":" in argument:
            left.append(f"{argument.partition(':')[0]}:{REMOVED}")
        else:
            left.append(argument)
        flag = argument if argument.startswith("-") and not sep else ""
    # What is known only by the words before it, as of "sshpass -p": all of them as one line, and taken apart again.
    hidden = _hide(" ".join(left))
    begin = 0
    for place, argument in enumerate(left):
        own = hidden[begin : begin + len(argument)]
        begin += len(argument) + 1
        left[place] = redact(_HIDDEN_RUN.sub(REMOVED, own) if _HIDDEN in own else argument)
    return tuple(left)


@cache
def _rules() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("redaction.toml").read_text(encoding="utf-8")
    rules: dict[str, Any] = tomllib.loads(text)
    return rules


def _shortest(texts: Set[str]) -> list[str]:
    """Those that hold no other one: where a longer one stands, so does its part."""
    return sorted(text for text in texts if not any(other != text and other in text for other in texts))


def _mask_of(size: int) -> str:
    return REMOVED + "*" * (size - len(REMOVED)) if size >= len(REMOVED) else "*" * size


def _hide(text: str) -> str:
    """The text with each character of a secret hidden; the same object if there is none.

    Also of secrets, or names of secrets, that are only seen where what is not shown is left out.
    """
    left = _hide_in(text)
    for view in views(text):
        hidden = _hide_in(view.text)
        if hidden is view.text:
            continue
        pieces, done = list[str](), 0
        for run in _HIDDEN_RUN.finditer(hidden):
            begin, end = view.span(*run.span())
            pieces += (left[done:begin], _HIDDEN * (end - begin))
            done = end
        left = "".join((*pieces, left[done:]))
    return left


def _hide_in(text: str) -> str:
    lowered = text.lower()
    left = text.replace(_HIDDEN, "\ufffd") if _HIDDEN in text else text
    hinted = any(map(lowered.__contains__, _hints()))  # of most texts all that is done, and without a loop of Python
    for shape in shapes() if hinted else shapes_without_hints():
        if not shape.hints or any(hint in lowered for hint in shape.hints):
            left = shape.pattern.sub(_hide_shape, left)
    if hinted and any(map(lowered.__contains__, names().hints)):
        left = _hide_named(left)
        left = _TOLD.sub(lambda match: _hide_shape(match) if _is_random(match["secret"]) else match[0], left)
        left = _NEXT_LINE.sub(lambda match: _hide_shape(match) if _is_below(match) else match[0], left)
    return left if _HIDDEN in left else text


def _hide_shape(match: re.Match[str]) -> str:
    # Patterns have one group, or several of which one matches; without any, all of the match goes.
    begin, end = match.span(match.lastgroup) if match.lastgroup else match.span()
    if match.string.startswith(REMOVED, begin):
        return match[0]
    return match.string[match.start() : begin] + _HIDDEN * (end - begin) + match.string[end : match.end()]


def _is_below(match: re.Match[str]) -> bool:
    return _naming(match["name"]) is _Naming.SECRET and _is_random(match["secret"], turns=1)


def _hide_named(text: str) -> str:
    pieces: list[str] = []
    done = 0
    at = 0
    while (named := _NAME.search(text, at)) is not None:
        at = named.end()
        name = (named["dash"] or "") + named["name"]
        naming = _naming(name)
        if naming is _Naming.HARMLESS:
            at = named.end("name")
            continue
        value = _VALUE.match(text, at)
        if value is None or (value.lastgroup in _OPEN and text[named.start() - 1 : named.start()] == value[0][:1]):
            continue  # the name stands in quotes, and what seemed to open a value ends them
        begin, at = value.span(value.lastgroup or 0)
        if not _is_secret(name, text[begin:at]) or (
            text[at : at + 1] in ("[", "(") and _CODE.fullmatch(text, begin, at)
        ):
            continue
        if value.lastgroup == "bare" and named["sep"] == ":" and naming is _Naming.SECRET:
            line = text.rfind("\n", 0, named.start()) + 1
            if named.start() - line < _INDENT and not text[line : named.start()].strip(" \t-"):
                end = text.find("\n", at)  # YAML: the value goes on to the end of its line
                at = len(text) if end < 0 else end
        pieces += (text[done:begin], _HIDDEN * (at - begin))
        done = at
    return "".join((*pieces, text[done:])) if pieces else text


@lru_cache(8192)
def _naming(name: str) -> _Naming:
    """How much a name says about its value; with its dashes, where it is a flag."""
    known = names()
    words = [word.lower() for word in _WORD.findall(name)]
    while words and words[-1].isdigit():
        words.pop()
    if not words or words[-1] in known.about:
        return _Naming.HARMLESS
    spaced = f" {' '.join(words)} "
    if any(word in known.words or word.endswith(known.endings) for word in words) or any(
        row in spaced for row in known.rows
    ):
        return _Naming.SECRET
    if words[-1] in known.token_words:
        before = words[:-1]
        if known.token_model.intersection(before):
            return _Naming.HARMLESS
        if known.token_before.intersection(before) or name.isupper() or name.startswith("-"):
            return _Naming.SECRET
        return _Naming.WEAK
    return _Naming.WEAK if words[-1] in known.weak else _Naming.HARMLESS


def _is_secret(name: str, value: str) -> bool:
    naming = _naming(name)
    if naming is _Naming.HARMLESS or value.startswith(REMOVED) or len(value) < 2:
        return False
    if _PLACEHOLDER.match(value):
        return False
    if naming is _Naming.WEAK or (value.isdigit() and len(value) < 10 and "tok" in name.lower()):
        return _is_random(value, turns=1)
    # Code quoted by a traceback: password=getpass(), token=args.token, secret=secret.
    code = _CODE.match(value)
    if code is not None and (code[0].endswith(("(", "[")) or _naming(value.rpartition(".")[2]) is not _Naming.HARMLESS):
        return False
    return value != name


def _is_random(value: str, turns: int = 3) -> bool:
    """Whether a person would not have written this: digits among letters, in one long piece."""
    if value.startswith(("/", "./", "../", "~")):
        return False
    pieces = [piece for piece in _CHUNK.findall(value[:512]) if len(piece) >= 8]
    return any(
        len(_TURN.findall(piece)) >= turns and any(c.isdigit() for c in piece) and any(c.isalpha() for c in piece)
        for piece in pieces
    )
