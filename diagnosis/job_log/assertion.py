"""What a statement asserts, without what it only supposes, advises or asks: ``hedges.toml`` has the words.

"Worker died. There are some potential root causes. (1) killed by the OOM killer" asserts that a worker died, and
nothing of memory. A possibility is no evidence for a class; that which is asserted beside it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from .log_tables import table

#: A statement is cut into sentences where one ends and the next begins.
SENTENCE = re.compile(r"(?<=[.!?;])\s+|(?<=[\w)]\.)(?=(?:This|That|There|If|Please|You|It|Try|Additionally)\b)|\n")


#: Without one of these nothing is supposed, and there is no second sentence that could advise.
HINTS = (
    "may", "might", "could", "can ", "possib", "potential", "probab", "perhaps", "presum", "usual", "typical", "often",
    "general", "normal", "common", "likely", "indicates", "suggests", "hints", "?", "solution", "troubleshoot", ". ",
    "; ", "! ", "\n", ".this", ".that", ".there", ".if", ".please", ".you", ".it", ".try", ".additionally",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hedges:
    suppose: re.Pattern[str]
    lists: re.Pattern[str]
    advise: re.Pattern[str]


@cache
def hedges() -> Hedges:
    """Patterns of words that suppose, list or advise, from hedges.toml."""
    words = table("hedges.toml")
    return Hedges(
        suppose=re.compile("|".join(words["suppose"])),
        lists=re.compile("|".join(words["list"])),
        advise=re.compile(words["advise"]),
    )


def asserted(text: str) -> str:
    """The text without the parts that only suppose, list or advise; "" if nothing is left."""
    words, low = hedges(), text.lower()
    if not any(hint in low for hint in HINTS) and not words.advise.match(text):
        return text
    if found := words.lists.search(text):
        text = text[: found.start()]
    kept = []
    for part in SENTENCE.split(text):
        if not part or words.advise.match(part):
            continue
        kept.append(_without_guess(part, words.suppose))
    return " ".join(part.strip() for part in kept if part.strip())


def _without_guess(part: str, suppose: re.Pattern[str]) -> str:
    """A sentence up to its guess; a guess in brackets goes with them, and the sentence goes on."""
    while (cut := suppose.search(part)) is not None:
        opened = part.rfind("(", 0, cut.start())
        closed = part.find(")", cut.start())
        if opened < 0 or closed < 0 or ")" in part[opened : cut.start()]:
            return part[: cut.start()]
        part = f"{part[:opened].rstrip()} {part[closed + 1 :].lstrip()}"
    return part
