"""The one way a benchmark tells its result: a table of asked, measured, k of n and ok or SHORT, and an exit status.

Used by every benchmark; prints to standard output, with ``--json`` of a benchmark the same rows as one JSON document.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import TextIO


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line. ``asked`` None: shown for information, never SHORT."""

    name: str
    asked: str | None
    measured: str
    share: str
    ok: bool


class Report:
    """Collects rows; ``finish`` prints them and returns the exit status (1 where a row is SHORT)."""

    def __init__(self, title: str, *, out: TextIO | None = None, as_json: bool = False) -> None:
        self.title = title
        self.rows: list[Row] = []
        self._out = sys.stdout if out is None else out
        self._as_json = as_json

    def at_most(self, name: str, asked: float, measured: float, *, k: int | None = None, n: int | None = None) -> bool:
        """``measured`` must not exceed ``asked``; ``k`` of ``n`` cases that went into it, where that says something."""
        return self._add(name, f"<= {asked:,.4g}", f"{measured:,.4g}", measured <= asked, k, n)

    def at_least(self, name: str, asked: float, measured: float, *, k: int | None = None, n: int | None = None) -> bool:
        """``measured`` must reach ``asked``."""
        return self._add(name, f">= {asked:,.4g}", f"{measured:,.4g}", measured >= asked, k, n)

    def all_of(self, name: str, k: int, n: int) -> bool:
        """All ``n`` cases must have held, and there must have been some."""
        return self._add(name, "all", f"{k:,}", k == n and n > 0, k, n)

    def shown(self, name: str, measured: str) -> None:
        """A line for the reader; nothing is asked of it."""
        self._keep(Row(name=name, asked=None, measured=measured, share="", ok=True))

    def failed(self, name: str, why: str) -> None:
        """A measurement that could not be taken counts as SHORT."""
        self._keep(Row(name=name, asked="measured", measured=why, share="", ok=False))

    def _add(self, name: str, asked: str, measured: str, ok: bool, k: int | None, n: int | None) -> bool:
        share = "" if n is None else f"{k if k is not None else n:,} of {n:,}"
        self._keep(Row(name=name, asked=asked, measured=measured, share=share, ok=ok))
        return ok

    def _keep(self, row: Row) -> None:
        """Also says it at once to whoever waits, and so that a run that is cut off leaves what it had."""
        self.rows.append(row)
        print(f"  {row.name}: {row.measured} {row.share}".rstrip(), file=sys.stderr, flush=True)

    def finish(self) -> int:
        """Print the table and the summary. 0 where everything asked for holds, else 1."""
        asked = [row for row in self.rows if row.asked is not None]
        short = [row for row in asked if not row.ok]
        summary = f"{len(asked) - len(short)} of {len(asked)} ok" + (f", {len(short)} SHORT" if short else "")
        if self._as_json:
            document = {"title": self.title, "rows": [asdict(row) for row in self.rows], "summary": summary}
            print(json.dumps(document), file=self._out, flush=True)
        else:
            self._print_table(summary)
        return 1 if short or not asked else 0

    def _print_table(self, summary: str) -> None:
        lines = [("", "asked", "measured", "k of n", "")]
        for row in self.rows:
            verdict = "" if row.asked is None else "ok" if row.ok else "SHORT"
            lines.append((row.name, row.asked or "-", row.measured, row.share, verdict))
        widths = [max(len(line[column]) for line in lines) for column in range(4)]
        print(f"\n{self.title}", file=self._out)
        for line in lines:
            cells = [line[0].ljust(widths[0])] + [line[column].rjust(widths[column]) for column in (1, 2, 3)]
            print(" | ".join([*cells, line[4]]).rstrip(), file=self._out)
        print(summary, file=self._out, flush=True)
