"""The one difference between compose and these tests: names of hosts, ports and folders.

Compose gives every service a network name and a container of its own; here everything runs on the loopback. ``place``
copies the files that compose mounts and replaces exactly those words; ``test_deployed_files`` undoes it and compares.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
DEPLOY = REPOSITORY / "deploy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A copy of ``source`` with ``words``, which it has, replaced (old -> new)."""

    source: Path
    target: Path
    words: Mapping[str, str]


def place(folder: Path, sources: Mapping[str, Path], words: Mapping[str, str]) -> list[Placed]:
    """Copy each of ``sources`` (name in ``folder`` -> file) with ``words`` replaced, all in one pass.

    Raises ValueError for a word that is in none of the files: then the files have moved on, and the test must follow.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unused = set(words)
    placed = []
    for name, source in sources.items():
        text = source.read_text()
        used = {word: new for word, new in words.items() if word in text}
        unused -= set(used)
        target = folder / name
        target.write_text(replace(text, used))
        target.chmod(source.stat().st_mode)
        placed.append(Placed(source=source, target=target, words=used))
    if unused:
        raise ValueError(f"{sorted(unused)} is in none of {sorted(map(str, sources.values()))}")
    return placed


def replace(text: str, words: Mapping[str, str]) -> str:
    """Every old word by its new one; longer words first, and nothing twice."""
    pattern = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return re.sub(pattern, lambda match: words[match[0]], text) if words else text
