"""``whichrank respond status`` and ``reset-breaker``: what was done, and a person's word that it may go on."""

from __future__ import annotations

import getpass
import json
import sqlite3
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ...telemetry.response_outcomes import Outcome
from ..incident_service.audit import AuditFile, AuditLine
from ..incident_text.utc_time import when
from ..support.stderr import say
from .action_store import DRY, LIVE, STATE_FILE, ActionStore, ActRow

EXIT_USAGE, EXIT_BREAKER = 2, 3
_SHOWN_ACTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeStatus:
    """Of real acts or of dry runs. breaker: why it is open, None closed. nodes_out: since when, Unix seconds."""

    breaker: str | None
    breaker_since: float | None
    nodes_out: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RespondStatus:
    """What --json tells of a folder of the service, field by field. acts: the newest first."""

    schema: int = 1
    state: str
    waiting: int
    live: ModeStatus
    dry: ModeStatus
    acts: tuple[ActRow, ...]


def status(folder: Path, *, as_json: bool) -> int:
    """Prints what a folder of the service tells: breaker, nodes that are out, last acts.

    The exit status: 0; 3 while the breaker of real acts is open; 2 where nothing is known.
    """
    store = _open(folder)
    if store is None:
        return EXIT_USAGE
    now = time.time()
    found = RespondStatus(
        state=str(folder),
        waiting=store.waiting(),
        live=_mode_status(store, LIVE, now),
        dry=_mode_status(store, DRY, now),
        acts=tuple(store.last_acts(_SHOWN_ACTS)),
    )
    store.close()
    if as_json:
        sys.stdout.write(json.dumps(asdict(found)) + "\n")
    else:
        _print(found)
    return EXIT_BREAKER if found.live.breaker else 0


def _mode_status(store: ActionStore, mode: str, now: float) -> ModeStatus:
    breaker = store.breaker(mode)
    out = store.nodes_out(now, mode)
    return ModeStatus(breaker=breaker.why, breaker_since=breaker.since or None, nodes_out=out)


def _print(found: RespondStatus) -> None:
    console = Console(highlight=False)
    for part, title in ((found.live, "acts"), (found.dry, "dry run")):
        state = f"OPEN since {when(part.breaker_since)}: {part.breaker}" if part.breaker else "closed"
        console.print(f"breaker of {title}: {state}", markup=False)
        console.print(f"  nodes out: {', '.join(sorted(part.nodes_out)) or 'none'}", markup=False)
    console.print(f"incidents that wait: {found.waiting}", markup=False)
    table = Table("when (UTC)", "mode", "outcome", "what", "target", "by", "incident", "detail")
    for act in found.acts:
        words = (act.mode, act.outcome, act.operation, act.target, act.hook, act.incident)
        table.add_row(when(act.began), *words, act.detail)
    if found.acts:
        console.print(table)


def reset_breaker(folder: Path, why: str) -> int:
    """Closes the breakers, real and dry, and writes that and ``why`` down. A service that runs goes on at once.

    The exit status: 0; 2 where nothing is known or it cannot be written.
    """
    now, by = time.time(), getpass.getuser()
    for mode in (LIVE, DRY):
        store = _open(folder, mode)
        if store is None:
            return EXIT_USAGE
        before = store.breaker().why
        text = f"{by} resets the breaker" + (f" ({before})" if before else ", which was closed")
        outcome = Outcome.BREAKER_RESET.value
        try:
            audit = AuditFile(folder)
            audit.write(AuditLine(time=round(now, 3), outcome=outcome, mode=mode, by=by, detail=why, text=text))
            audit.close()
            store.reset_breaker(now)
        except (OSError, sqlite3.Error) as error:
            say(f"{folder}: {error}")
            return EXIT_USAGE
        finally:
            store.close()
        say(f"{'acts' if mode == LIVE else 'dry run'}: {text}")
    return 0


def _open(folder: Path, mode: str = LIVE) -> ActionStore | None:
    if not (folder / STATE_FILE).is_file():
        say(f"{folder}: no whichrank respond has run here (respond_state)")
        return None
    try:
        return ActionStore(folder, mode, exclusive=False)
    except (OSError, sqlite3.Error) as error:
        say(f"{folder}: {error}")
        return None
