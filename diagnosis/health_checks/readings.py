"""Readings out of the words of system tools. Pure: text in, a value or None out. None: nothing that can be read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(?:\.[0-9]{1,9})?", re.ASCII)
_PERCENT = re.compile(r"(?<![0-9.])([0-9]{1,3})%", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([KMGTPE]?)i?B?", re.ASCII)
_SCALE = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}
_NVLINK_GPU = re.compile(r"^\s*gpuId\s+([0-9]{1,4}):\s*$", re.MULTILINE | re.IGNORECASE | re.ASCII)
_NODES = re.compile(r"^\s*([0-9]{1,9})\s+([A-Z_+*~#!%$@^-]+)\s*$", re.MULTILINE | re.ASCII)
_HCAS = re.compile(r"([0-9]{1,6})\s+(?:HCAs?|CAs?)\s+found", re.IGNORECASE | re.ASCII)
_MOUNT = re.compile(r"^\S+ on (\S.*) type (\S+) \(", re.MULTILINE)


def number(text: str | None) -> float | None:
    """The whole text is one number."""
    if text is None or _NUMBER.fullmatch(text.strip()[:40]) is None:
        return None
    return float(text.strip())


def first_number(text: str | None) -> float | None:
    """Of several in a line, such as /proc/uptime."""
    words = text.split(maxsplit=1) if text else []
    return number(words[0]) if words else None


def numbers(text: str | None, count: int) -> tuple[float, ...] | None:
    """Exactly ``count`` of them."""
    found = [number(word) for word in (text or "")[:1000].split()]
    values = tuple(value for value in found if value is not None)
    return values if len(values) == len(found) == count else None


def percents(text: str | None) -> tuple[int, ...]:
    """All of them, in order: ``df --output=pcent,ipcent``."""
    return tuple(int(found) for found in _PERCENT.findall((text or "")[:10_000]))


def size_bytes(text: str | None) -> float | None:
    """``2T``, ``512 MiB``: in powers of 1024, as df and lsblk mean them."""
    found = _SIZE.fullmatch((text or "").strip()[:40])
    return float(found.group(1)) * _SCALE[found.group(2)] if found else None


def hca_count(text: str | None) -> int | None:
    """``4 HCAs found:`` of ibv_devices."""
    found = _HCAS.search((text or "")[:10_000])
    return int(found.group(1)) if found else None


def link_words(text: str | None, key: str) -> tuple[str, ...]:
    """What ibstat says after ``key:`` (``State``, ``Physical state``) for each port, in lower case."""
    pattern = re.compile(rf"^\s*{re.escape(key)}:[ \t]*(\S[^\r\n]{{0,60}})$", re.MULTILINE | re.IGNORECASE)
    return tuple(found.strip().lower() for found in pattern.findall((text or "")[:100_000]))


def nvlink_states(text: str | None) -> dict[str, str]:
    """GPU -> a letter per link (U up, D down, X disabled, _ none) of ``dcgmi nvlink -s``."""
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
    """Link -> kind of error -> count, of ``dcgmi nvlink --errors --json``."""
    try:
        body = json.loads(text or "")["body"]
        links = {
            str(link): {str(kind): int(each["value"]) for kind, each in entry["children"].items()}
            for link, entry in body.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return links


def nodes_by_state(text: str | None) -> dict[str, int]:
    """State -> nodes, of ``scontrol show node | grep State | sort | uniq -c`` or of sinfo."""
    found: dict[str, int] = {}
    for count, state in _NODES.findall((text or "")[:100_000]):
        found[state] = found.get(state, 0) + int(count)
    return found


def mounted(text: str | None) -> dict[str, str]:
    """Folder -> kind of file system, of ``mount``."""
    return dict(_MOUNT.findall((text or "")[:1_000_000]))


def fields(text: str, separator: str) -> list[list[str]]:
    """Lines as trimmed columns; empty lines left out."""
    rows = [[cell.strip() for cell in line.split(separator)] for line in text[:1_000_000].splitlines()]
    return [row for row in rows if any(row)]


def counts_of(text: str | None) -> Mapping[str, int]:
    """``lsmod``: module -> how many others use it; the first column is the name."""
    rows = [line.split() for line in (text or "")[:1_000_000].splitlines()]
    return {row[0]: int(row[2]) for row in rows if len(row) >= 3 and row[2].isascii() and row[2].isdigit()}
