"""Texts that differ in their digits only get one answer: a log says the same few hundred things again and again.

A question that takes all digits alike is asked once per kind of text, of the text with a zero for each digit, so places
in the answer are places in every text of the kind. Memory is bounded: many kinds are forgotten together.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from string import ascii_lowercase, ascii_uppercase
from typing import TypeVar

Answer = TypeVar("Answer")
#: Kinds remembered per question, and their bytes.
KINDS = 4096
KINDS_BYTES = 1 << 20
_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_LOWER_ZEROS = bytes.maketrans((ascii_uppercase + "123456789").encode(), (ascii_lowercase + "0" * 9).encode())
#: In the source of a pattern, digits that are none of a text's: of repeats, of names, of "any digit".
_NO_DIGITS = re.compile(r"\{\d*,?\d*\}|\(\?P<\w+>|(?<=(?<!\\)\[)0-9|(?<=[a-zA-Z;:.^])0-9(?=[^\[]*\])")


def kind_of(text: str) -> str:
    return _text(_bytes(text).translate(_ZEROS))


def asked_once(question: Callable[[str], Answer]) -> Callable[[str], Answer]:
    """question: takes all digits alike."""
    ask = _remembering(lambda kind: question(_text(kind)), _ZEROS)
    # As bytes: replacing characters of a str takes ten times as long.
    return lambda text: ask(_bytes(text))


def asked_once_of_bytes(question: Callable[[bytes], Answer]) -> Callable[[bytes], Answer]:
    """question: takes all digits alike, and is asked of the text in lower case."""
    return _remembering(question, _LOWER_ZEROS)


def _remembering(question: Callable[[bytes], Answer], zeros: bytes) -> Callable[[bytes], Answer]:
    known: dict[bytes, Answer] = {}
    size = 0

    def ask(text: bytes) -> Answer:
        nonlocal size
        kind = text.translate(zeros)
        try:
            return known[kind]
        except KeyError:
            size += len(kind)
            if len(known) >= KINDS or size > KINDS_BYTES:
                known.clear()
                size = len(kind)
            known[kind] = answer = question(kind)
            return answer

    return ask


def _bytes(text: str) -> bytes:
    # JSON can hold halves of characters.
    return text.encode("utf-8", "surrogatepass")


def _text(kind: bytes) -> str:
    return kind.decode("utf-8", "surrogatepass")


def takes_digits_alike(pattern: str) -> bool:
    """Whether a regular expression surely matches a text whatever its digits are, at the same places."""
    return not any(letter.isdigit() for letter in _NO_DIGITS.sub("", pattern))
