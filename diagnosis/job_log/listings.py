"""Statements that end with a colon and go on as a list: ranks or tasks that did not come, one in each line below."""

from __future__ import annotations

import re
from dataclasses import replace

from .model import LogLine, Witness

HEAD = re.compile(
    r"(?:[Tt]imed out task names?|(?:[Mm]issing|[Ss]talled|[Ss]ilent|[Aa]bsent) (?:ranks|tasks|workers|"
    r"processes)|stopped sending heartbeats\)?|"
    r"\b(?:ranks?|tasks?|workers?|processes)\b[^:\n]{0,80}\b(?:did not|have not|failed|missing|unhealthy|"
    r"not (?:join|respond|arriv)\w*)[^:\n]{0,80}):\s*$"
)
ITEM = re.compile(
    r"(?:[-*] ?)?(?:/job:\S*/task:(?P<task>\d{1,6})|(?:[Rr]ank |[Tt]ask |"
    r"[Ww]orker )?(?P<rank>\d{1,6})(?::? ?\[|[,;]|\s*$|\s*\())"
)
MOST_ITEMS = 64
#: Lines that others may put between.
PATIENCE = 4


class Listings:
    """``hold`` a witness that a list may follow; ``feed`` lines; take witnesses from ``done``."""

    def __init__(self) -> None:
        self.done: list[Witness] = []
        self._held: Witness | None = None
        self._ranks: list[int] = []
        self._last = 0

    def wants_next(self) -> bool:
        """Whether a list is open, whose next entry the next line may be."""
        return self._held is not None

    def hold(self, witness: Witness) -> bool:
        """Whether the witness ends with a colon and waits for a list of ranks; then it is held."""
        if not witness.text.endswith(":") or HEAD.search(witness.text) is None:
            return False
        self.finish()
        self._held, self._last = witness, witness.line.number
        return True

    def feed(self, line: LogLine) -> bool:
        """Whether the line is an entry of the list, or one may still come. A list that is over goes into ``done``."""
        held = self._held
        if held is None:
            return False
        if line.source != held.line.source or line.number - self._last > PATIENCE:
            self.finish()
            return False
        # srun's and mpirun's manner of writing a rank first has taken the number off: "1: [allreduce.0]".
        number = line.rank if line.text.startswith("[") and line.rank is not None else None
        if number is None and (item := ITEM.match(line.text)):
            number = int(item["task"] or item["rank"])
        if number is None:
            if line.text:
                self.finish()
            return False
        self._last = line.number
        if len(self._ranks) < MOST_ITEMS:
            self._ranks.append(number)
        return True

    def finish(self) -> None:
        """Ends the list: the statement is added to ``done`` with every rank that was listed as missing."""
        held, ranks = self._held, tuple(dict.fromkeys(self._ranks))
        self._held, self._ranks = None, []
        if held is not None:
            missing = ranks or held.target.missing
            text = f"{held.text} {', '.join(map(str, ranks))}" if ranks else held.text
            self.done.append(replace(held, text=text, target=replace(held.target, missing=missing)))
