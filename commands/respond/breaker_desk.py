"""``whichrank respond status`` and ``reset-breaker``: what was done, and a person's word that it may go on."""

from __future__ import annotations

import getpass
import json
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ...telemetry.vocabulary import Outcome
from ..incident_text.utc_time import when
from ..support.stderr import say
from .audit import AuditFile
from .ledger import DRY, LIVE, STATE_FILE, Ledger

EXIT_USAGE, EXIT_BREAKER = 2, 3
_SHOWN_ACTS = 20


def status(folder: Path, *, as_json: bool) -> int:
    """The exit status: 0; 3 while the breaker of real acts is open; 2 where nothing is known."""
    ledger = _open(folder)
    if ledger is None:
        return EXIT_USAGE
    now = time.time()
    found: dict[str, Any] = {"schema": 1, "state": str(folder), "waiting": ledger.waiting()}
    for mode in (LIVE, DRY):
        breaker = ledger.breaker(mode)
        out = ledger.nodes_out(now, mode)
        found[mode] = {"breaker": breaker.why, "breaker_since": breaker.since or None, "nodes_out": out}
    found["acts"] = ledger.last_acts(_SHOWN_ACTS)
    ledger.close()
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        _print(found)
    return EXIT_BREAKER if found[LIVE]["breaker"] else 0


def _print(found: dict[str, Any]) -> None:
    console = Console(highlight=False)
    for mode, title in ((LIVE, "acts"), (DRY, "dry run")):
        part = found[mode]
        state = f"OPEN since {when(part['breaker_since'])}: {part['breaker']}" if part["breaker"] else "closed"
        console.print(f"breaker of {title}: {state}", markup=False)
        console.print(f"  nodes out: {', '.join(sorted(part['nodes_out'])) or 'none'}", markup=False)
    console.print(f"incidents that wait: {found['waiting']}", markup=False)
    table = Table("when (UTC)", "mode", "outcome", "what", "target", "by", "incident", "detail")
    for act in found["acts"]:
        words = (act["mode"], act["outcome"], act["operation"], act["target"], act["hook"], act["incident"])
        table.add_row(when(act["began"]), *words, act["detail"])
    if found["acts"]:
        console.print(table)


def reset_breaker(folder: Path, why: str) -> int:
    """The exit status: 0; 2 where nothing is known or it cannot be written. A service that runs goes on at once."""
    now, by = time.time(), getpass.getuser()
    for mode in (LIVE, DRY):
        ledger = _open(folder, mode)
        if ledger is None:
            return EXIT_USAGE
        before = ledger.breaker().why
        text = f"{by} resets the breaker" + (f" ({before})" if before else ", which was closed")
        told = {"time": round(now, 3), "outcome": Outcome.BREAKER_RESET.value, "mode": mode, "by": by, "detail": why}
        try:
            audit = AuditFile(folder)
            audit.write({**told, "text": text})
            audit.close()
            ledger.reset_breaker(now)
        except (OSError, sqlite3.Error) as error:
            say(f"{folder}: {error}")
            return EXIT_USAGE
        finally:
            ledger.close()
        say(f"{'acts' if mode == LIVE else 'dry run'}: {text}")
    return 0


def _open(folder: Path, mode: str = LIVE) -> Ledger | None:
    if not (folder / STATE_FILE).is_file():
        say(f"{folder}: no whichrank respond has run here (respond_state)")
        return None
    try:
        return Ledger(folder, mode, exclusive=False)
    except (OSError, sqlite3.Error) as error:
        say(f"{folder}: {error}")
        return None
