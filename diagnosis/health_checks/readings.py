"""Readings out of the words of system tools. Pure: text in, a value or None out. None: nothing that can be read."""

from __future__ import annotations

import json
import re

_NVLINK_GPU = re.compile(r"^\s*gpuId\s+([0-9]{1,4}):\s*$", re.MULTILINE | re.IGNORECASE | re.ASCII)


def link_words(text: str | None, key: str) -> tuple[str, ...]:
    """The words after ``key:`` (``State``, ``Physical state``) in ibstat's output, one per port, in lower case."""
    pattern = re.compile(rf"^\s*{re.escape(key)}:[ \t]*(\S[^\r\n]{{0,60}})$", re.MULTILINE | re.IGNORECASE)
    return tuple(found.strip().lower() for found in pattern.findall((text or "")[:100_000]))


def nvlink_states(text: str | None) -> dict[str, str]:
    """By GPU a letter per link (U up, D down, X disabled, _ none), from ``dcgmi nvlink -s``; {} if unreadable."""
    text = (text or "")[:100_000]
    found = list(_NVLINK_GPU.finditer(text))
    states = {}
    for at, gpu in enumerate(found):
        end = found[at + 1].start() if at + 1 < len(found) else len(text)
        # What follows the GPUs is the table of NvSwitches, whose lines have words.
        letters = []
        for line in text[gpu.end() : end].splitlines():
            words = line.split()
            if words and not all(word in {"U", "D", "X", "_"} for word in words):
                break
            letters += words
        states[gpu.group(1)] = "".join(letters)
    return states


def nvlink_errors(text: str | None) -> dict[str, dict[str, int]] | None:
    """By link and kind of error a count, from ``dcgmi nvlink --errors --json``; None if unreadable."""
    try:
        body = json.loads(text or "")["body"]
        links = {
            str(link): {str(kind): int(each["value"]) for kind, each in entry["children"].items()}
            for link, entry in body.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return links


def fields(text: str, separator: str) -> list[list[str]]:
    """Lines as trimmed columns; empty lines left out."""
    rows = [[cell.strip() for cell in line.split(separator)] for line in text[:1_000_000].splitlines()]
    return [row for row in rows if any(row)]
