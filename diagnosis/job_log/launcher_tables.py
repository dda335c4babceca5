"""torchrun's table of failures (``ChildFailedError``): which rank ended how, as the agent of one node saw it.

The agent that polls first calls its own rank the root cause: so a table confirms, and never outweighs a rank's words.
"""

from __future__ import annotations

import re
from dataclasses import replace

from .log_prefix import read_lines
from .model import Form, LineRole, LogLine, Witness
from .taxonomy import failure_classes
from .ways import NOBODY_KNOWN
from .witnesses import signal_of

#: Name of the rule of the entry that the agent saw first.
ROOT_RULE = "launcher_first"
BEGIN = "ChildFailedError"
FIELD = re.compile(r"(?P<name>time|host|rank|exitcode|error_file|traceback)\s*:\s(?P<value>.*)$")
ENTRY = re.compile(r"\[\d+\]:\s*$")
RANK = re.compile(r"(?P<rank>\d+)(?: \(local_rank: (?P<local>\d+)\))?")
CODE = re.compile(r"-?\d+")
SIGNAL = re.compile(r"Signal (\d+)")
#: Lines of a table that may lack a field of it.
MOST_ODD_LINES = 12
MOST_ENTRIES = 4096


class LauncherTables:
    """``feed`` lines; take witnesses from ``done``."""

    def __init__(self) -> None:
        self.done: list[Witness] = []
        self._begun: LogLine | None = None
        self._entry: dict[str, str] = {}
        self._entry_line: LogLine | None = None
        self._odd = 0
        self._count = 0
        self._is_root = False

    def wants_next(self) -> bool:
        """Whether a table of failures is open."""
        return self._begun is not None

    def feed(self, line: LogLine) -> bool:
        """Whether the line is of a table of failures, but for its first one. Whole entries are added to ``done``."""
        if BEGIN in line.text and "(" not in line.text.split(BEGIN)[0]:
            self.finish()
            self._begun, self._odd = line, 0
            return False
        if self._begun is None:
            return False
        text = line.text
        if field := FIELD.match(text):
            if self._entry_line is None:
                self._entry_line = line
            self._entry.setdefault(field["name"], field["value"].strip())
            self._odd = 0
            return field["name"] != "traceback" or "Traceback" not in text
        if ENTRY.match(text):
            self._end_entry()
            self._odd = 0
            return True
        if text.startswith(("Failures:", "Root Cause")):
            self._end_entry()
            self._is_root = text.startswith("Root")
            return True
        if not text or set(text) <= set("=-") or text.startswith("<NO_OTHER"):
            if text and set(text) <= set("=") and self._entry:
                self.finish()
            return True
        self._odd += 1
        if self._odd > MOST_ODD_LINES:
            self.finish()
        return False

    def finish(self) -> None:
        """Ends the table, wherever it was cut off: an entry that is open is added to ``done``."""
        self._end_entry()
        self._begun = None

    def _end_entry(self) -> None:
        entry, line = self._entry, self._entry_line
        self._entry, self._entry_line = {}, None
        if line is None or not ("exitcode" in entry or "rank" in entry) or self._count >= MOST_ENTRIES:
            return
        self._count += 1
        code = CODE.search(entry.get("exitcode", ""))
        killed = SIGNAL.search(entry.get("traceback", ""))
        exit_code = int(code[0]) if code else -int(killed[1]) if killed else None
        rank = RANK.match(entry.get("rank", ""))
        time = (entry.get("time", "").replace("_", " ") + " x").encode()
        stamped = next(read_lines(NOBODY_KNOWN, line.number, time))
        number = signal_of(exit_code)
        self.done.append(
            Witness(
                line=replace(
                    line,
                    rank=int(rank["rank"]) if rank else line.rank,
                    local_rank=int(rank["local"]) if rank and rank["local"] else line.local_rank,
                    node=entry.get("host") or line.node,
                    stamp=line.stamp or stamped.stamp,
                    own_stamp=stamped.stamp or line.own_stamp,
                ),
                failure=failure_classes()["launcher_report"],
                role=LineRole.TEARDOWN if number == 15 else LineRole.CASCADE,
                form=Form.LAUNCHER,
                text=f"rank {entry.get('rank', '?')} ended with exit code {entry.get('exitcode', '?')}",
                rule=ROOT_RULE if self._is_root else "launcher_table",
                first_line=line.number,
                wraps=True,
                exit_code=exit_code,
            )
        )
