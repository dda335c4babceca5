"""``whichrank diagnose flight-recorder DIR``: PyTorch's dumps of all ranks, and who made the others wait."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..support.stderr import say
from .input_file import Unreadable
from .packed_file import opened, without_suffix

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...diagnosis.flight_recorder.activity import Activity, DumpOperation
    from ...diagnosis.flight_recorder.analysis import Diagnosis
    from ...diagnosis.flight_recorder.dump_files import DumpFiles
    from ...diagnosis.nccl_ras import RasFinding

EXIT_USAGE = 2
#: A folder of more files is not one of dumps.
MAX_FILES = 100_000
#: Notes and rows of a table that people are shown; --json has all.
SHOWN_NOTES = 10
SHOWN_ROWS = 40
#: Never dumps, though they lie beside them.
NO_DUMPS = frozenset({".log", ".out", ".err", ".md", ".tsv", ".csv", ".py", ".yaml", ".yml", ".toml", ".html"})


def register(app: typer.Typer) -> None:
    """Adds ``whichrank diagnose flight-recorder`` to the group."""

    @app.command("flight-recorder")
    def flight_recorder(
        where: Annotated[
            list[Path],
            typer.Argument(metavar="DIR|FILE...", help="folder of dumps (one file per rank), or files; pickle or JSON"),
        ],
        as_json: Annotated[bool, typer.Option("--json", help="one JSON document instead of tables")] = False,
    ) -> None:
        """Say which rank the others wait for, from PyTorch flight-recorder dumps. No code of a dump is ever run."""
        raise typer.Exit(diagnose_flight_recorder(where, as_json=as_json))


def diagnose_flight_recorder(where: Sequence[Path], *, as_json: bool) -> int:
    """Prints whom the ranks wait for, by the dumps in these folders or files.

    The exit status: 0; 2 where there is no dump that can be read.
    """
    from ...diagnosis.flight_recorder.analysis import analyse
    from .flight_recorder_document import write_diagnosis

    missing = next((path for path in where if not path.exists()), None)
    if missing is not None:
        say(f"{missing} does not exist; name the folder with the ranks' dumps (TORCH_FR_DUMP_TEMP_FILE's folder)")
        return EXIT_USAGE
    files = list(_files(where))
    if not files or len(files) > MAX_FILES:
        say(f"{where[0]} holds {len(files)} files; a folder of dumps has one for each rank")
        return EXIT_USAGE
    collected, ras = read_dumps(files)
    if not collected.dumps:
        why = f": {collected.notes[0]}" if collected.notes else ""
        say(f"no flight-recorder dump in {where[0]}{why}")
        return EXIT_USAGE
    diagnosis = analyse(collected.dumps)
    if as_json:
        sys.stdout.write(json.dumps(write_diagnosis(diagnosis, ras, collected.notes)) + "\n")
        return 0
    _print(diagnosis, ras, collected.notes)
    return 0


def read_dumps(files: Sequence[Path]) -> tuple[DumpFiles, list[RasFinding]]:
    """Every dump that can be read, and what NCCL's RAS said beside them; what cannot be read is in the notes."""
    from ...diagnosis.flight_recorder.dump_files import MAX_JSON_BYTES, BadDump, DumpFiles
    from ...diagnosis.nccl_ras import BadRas, is_ras, parse_ras

    collected = DumpFiles(len(files))
    ras: list[RasFinding] = []
    for path in files:
        try:
            if not path.is_file():
                continue
            with opened(str(path), path) as file:
                data = file.read(MAX_JSON_BYTES + 1)
            if is_ras(data):
                ras.extend(parse_ras(data))
            else:
                collected.add(without_suffix(path.name), data)
        except (BadDump, BadRas) as wrong:
            collected.notes.append(f"{path}: {wrong}")
        except Unreadable as wrong:
            collected.notes.append(str(wrong))
        except OSError as trouble:
            collected.notes.append(f"{path} cannot be read: {trouble.strerror}")
    versions = sorted({dump.version for dump in collected.dumps.values()})
    if len(versions) > 1:
        collected.notes.append(f"ranks dump in different versions ({', '.join(versions)}): their torch is not the same")
    return collected, ras


def _files(where: Sequence[Path]) -> Iterator[Path]:
    for path in where:
        if path.is_dir():
            yield from sorted(one for one in path.iterdir() if _may_be_dump(one) and one.is_file())
        else:
            yield path


def _may_be_dump(path: Path) -> bool:
    return Path(without_suffix(path.name)).suffix.lower() not in NO_DUMPS


def _print(diagnosis: Diagnosis, ras: Sequence[RasFinding], notes: Sequence[str]) -> None:
    from rich.console import Console

    # A pipe has no width: lines stay whole.
    console = Console(width=None if sys.stdout.isatty() else 160)
    for part in _rendered(diagnosis, ras):
        console.print(part)
    for note in notes[:SHOWN_NOTES]:
        say(_printable(note))
    if len(notes) > SHOWN_NOTES:
        say(f"... and {len(notes) - SHOWN_NOTES} more notes (--json has all)")


def _rendered(diagnosis: Diagnosis, ras: Sequence[RasFinding]) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    from ...diagnosis.flight_recorder.activity import alike
    from ...telemetry.ring_layout import format_ranks

    kind = f" [{diagnosis.bucket.value} / {diagnosis.kind.value}]" if diagnosis.bucket and diagnosis.kind else ""
    yield Text(_printable(f"{diagnosis.summary}{kind}"), style="bold")
    head = Table(box=None, show_header=False, pad_edge=False)
    head.add_column(style="dim", no_wrap=True)
    head.add_column(overflow="fold")
    for suspect in diagnosis.suspects[:SHOWN_ROWS]:
        line = f"rank {suspect.rank} ({suspect.probability:.2f}): {suspect.because}"
        activity = diagnosis.activities.get(suspect.rank)
        head.add_row("suspect", Text(_printable(f"{line}; {_sentence(activity)}" if activity else line)))
    if diagnosis.state is not None:
        state = diagnosis.state
        operation = f"{state.call.op} {state.sequence}" if state.call else f"call {state.sequence}"
        members = format_ranks(list(state.group.members))
        head.add_row("group", Text(_printable(f"{state.group.label}, ranks {members}, at {operation}")))
    if diagnosis.kind is not None:
        head.add_row("victims", f"{len(diagnosis.victims)}: ranks {format_ranks(list(diagnosis.victims)) or 'none'}")
    for row in diagnosis.ruled_out:
        head.add_row("not guilty", f"ranks {format_ranks(list(row.ranks))}: {row.looks_guilty}, but {row.because}")
    if diagnosis.silent:
        head.add_row("no dump", f"ranks {format_ranks(list(diagnosis.silent))}: not seen, so not ruled out")
    for finding in ras[:SHOWN_ROWS]:
        who = "; ".join(f"process {one.pid} on {one.node}, GPU {one.gpu}" for one in finding.processes[:4])
        odd = f" (ranks {format_ranks(list(finding.ranks))} of {finding.communicator})" if finding.ranks else ""
        head.add_row("NCCL RAS", Text(_printable(f"{finding.problem.value}: {finding.says}{odd} {who}")))
    head.add_row("seen", f"{len(diagnosis.activities)} of {diagnosis.ranks_expected} ranks")
    if diagnosis.kind is not None:
        head.add_row("confidence", f"{diagnosis.confidence:.2f}")
    if diagnosis.advice is not None:
        head.add_row("advice", f"{diagnosis.advice.action.value}: {diagnosis.advice.text}")
    yield head
    yield Text("")
    table = Table("ranks", "n", "in", "calls open", "newest call", "where", box=None, pad_edge=False)
    rows = alike(diagnosis.activities)
    for ranks, activity in rows[:SHOWN_ROWS]:
        where = activity.where
        table.add_row(
            Text(format_ranks(list(ranks))),
            str(len(ranks)),
            Text(_printable(_words(activity.open) or "nothing")),
            str(activity.open_count),
            Text(_printable(_words(activity.last) or "none")),
            Text(_printable(f"{Path(where.file).name}:{where.line} in {where.function}" if where else "")),
        )
    yield table
    if len(rows) > SHOWN_ROWS:
        yield Text(f"... and {len(rows) - SHOWN_ROWS} more sets of ranks (--json has all)")


def _sentence(activity: Activity) -> str:
    where = f" at {Path(activity.where.file).name}:{activity.where.line}" if activity.where else ""
    if activity.open is not None:
        return f"open: {_words(activity.open)}{where}"
    return f"nothing open; its newest call was {_words(activity.last)}{where}" if activity.last else "it called nothing"


def _words(operation: DumpOperation | None) -> str:
    return f"{operation.name} {operation.sequence} of {operation.group}" if operation else ""


def _printable(text: str) -> str:
    """Names in a dump may hold anything; what would move a terminal's cursor becomes a space."""
    return "".join(character if character.isprintable() else " " for character in text)
