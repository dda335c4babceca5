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
    """The text with every digit as a 0: equal for texts that differ in numbers only."""
    return zeroed(_bytes(text)).decode("utf-8", "surrogatepass")


def zeroed(text: bytes) -> bytes:
    """The text (UTF-8) with every digit as a 0, as ``kind_of`` has it."""
    return text.translate(_ZEROS)


def asked_once(question: Callable[[str], Answer]) -> Callable[[str], Answer]:
    """``question`` with its answers remembered: asked once of all texts that differ in digits only.

    question: must give texts with other digits the same answer; it gets zeros for them.
    """
    known = _Kinds(lambda kind: question(kind.decode("utf-8", "surrogatepass")))
    # As bytes: replacing characters of a str takes ten times as long.
    return lambda text: known[zeroed(_bytes(text))]


def asked_once_of_bytes(question: Callable[[bytes], Answer]) -> Callable[[bytes], Answer]:
    """``question`` with its answers remembered: asked once of all bytes that differ in digits or case only.

    It is asked of the text in lower case, with zeros for its digits, which must not change its answer.
    """
    known = _Kinds(question)
    return lambda text: known[text.translate(_LOWER_ZEROS)]


class _Kinds(dict[bytes, Answer]):
    """The answer for each kind that was asked for."""

    def __init__(self, question: Callable[[bytes], Answer]) -> None:
        super().__init__()
        self._question = question
        self._size = 0

    def __missing__(self, kind: bytes) -> Answer:
        self._size += len(kind)
        if len(self) >= KINDS or self._size > KINDS_BYTES:
            self.clear()
            self._size = len(kind)
        answer = self[kind] = self._question(kind)
        return answer


def _bytes(text: str) -> bytes:
    # JSON can hold halves of characters.
    return text.encode("utf-8", "surrogatepass")


def takes_digits_alike(pattern: str) -> bool:
    """Whether a regular expression surely matches a text whatever its digits are, at the same places."""
    return not any(letter.isdigit() for letter in _NO_DIGITS.sub("", pattern))
