"""``whichrank diagnose steps FILE``: phase times per rank -> culprit, phase, victim; traces -> what slows the job."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TextIO

import typer

from ...diagnosis.phase_times.self_time import judge_self
from ...diagnosis.phase_times.step_phases import StepTimeCause, StepVerdict, Strategy
from ...diagnosis.phase_times.step_series import StepSeries
from ...diagnosis.phase_times.visible_time import judge_shares, judge_visible
from ...diagnosis.phase_times.what_if_replay import Slowdown, what_if
from ..support.stderr import say
from .input_file import EXIT_USAGE, Unreadable, bounded_lines, delimiter_of, looks_like_json
from .packed_file import opened_text, without_suffix

FORMATS = """FILE is JSON lines, CSV or TSV with a header; a row is a step of a rank, or a rank's mean.

Columns: rank; step (a mean: steps, over how many); stage; node; input, h2d, forward, backward, optimizer, checkpoint,
wait (inside collectives), residual, step_time, in ms, or with _s, _ms, _us, _ns at the end of the name.
With wait the verdict rests on own work; without it on who waits least in backward (FSDP: forward and backward).

A trace of operations has rank, dp_rank, stage, step, optype, start_ts, duration (seconds), seq_id; also as .parquet
where pyarrow is installed. It is replayed with ideal durations to say what the time is lost to.
"""


def register(app: typer.Typer) -> None:
    """Adds ``whichrank diagnose steps`` to the group."""

    @app.command("steps", help=f"Who is slow, in which phase, and who waits.\n\n{FORMATS}")
    def steps_command(
        path: Annotated[Path, typer.Argument(metavar="FILE", help="file, or - for stdin")],
        strategy: Annotated[Strategy, typer.Option(help="where ranks wait for each other")] = Strategy.DDP,
        as_json: Annotated[bool, typer.Option("--json", help="one JSON document")] = False,
    ) -> None:
        try:
            raise typer.Exit(_diagnose(path, strategy, as_json=as_json))
        except Unreadable as trouble:
            say(str(trouble))
            raise typer.Exit(EXIT_USAGE) from None


def _diagnose(path: Path, strategy: Strategy, *, as_json: bool) -> int:
    series = _read(path)
    notes = []
    if series.first_bad:
        line, why = series.first_bad
        notes.append(f"{series.bad_rows} rows could not be read, the first at line {line}: {why}")
    if series.left_out:
        notes.append(f"{series.left_out} rows more than can be held were left out")
    head = {"schema": 1, "source": str(path), "bad_rows": series.bad_rows, "notes": notes}
    if series.is_trace:
        try:
            found = what_if(series.operations)
        except ValueError as trouble:
            raise Unreadable(f"{path}: {trouble}; see whichrank diagnose steps --help") from None
        document = json.dumps({**head, "kind": "trace", "operations": len(series.operations), **asdict(found)})
        text = _words_of_trace(found)
    else:
        verdict = _judge(series, strategy)
        about = {"kind": "steps", "ranks": len(series.ranks), "steps": series.steps}
        document = json.dumps({**head, **about, **asdict(verdict)})
        text = [f"{verdict.cause.value} ({verdict.severity.value}): {verdict.text}"]
    if as_json:
        sys.stdout.write(document + "\n")
        return 0
    sys.stdout.write("\n".join(text) + "\n")
    for note in notes:
        say(note)
    return 0


def _judge(series: StepSeries, strategy: Strategy) -> StepVerdict:
    if series.has_wait:
        verdict = judge_self(series.step_table())
        # Nobody stands out: then what all of them spend their time on.
        return judge_shares(series.rank_times(), series.steps) if verdict.cause is StepTimeCause.BALANCED else verdict
    return judge_visible(series.rank_times(), series.steps, strategy)


def _read(path: Path) -> StepSeries:
    series = StepSeries()
    if path.suffix.lower() == ".parquet":
        _parquet(path, series)
    elif str(path) == "-":
        _text(sys.stdin, "", series)
    else:
        try:
            with opened_text(str(path), path) as file:
                _text(file, Path(without_suffix(path.name)).suffix.lower(), series)
        except OSError as trouble:
            raise Unreadable(f"{path}: {trouble.strerror}; name a file of step times") from trouble
    if not series.rows and not series.operations:
        where = f"line {series.first_bad[0]}: {series.first_bad[1]}" if series.first_bad else "no row in it"
        raise Unreadable(f"{path}: {where}; see whichrank diagnose steps --help for the columns")
    return series


def _text(file: TextIO, suffix: str, series: StepSeries) -> None:
    lines = bounded_lines(file)
    first = next(lines, "")
    everything = itertools.chain([first], lines)
    if looks_like_json(first, suffix):
        series.json_lines(everything)
    else:
        series.table(everything, delimiter_of(first))


def _parquet(path: Path, series: StepSeries) -> None:
    try:
        from pyarrow import parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise Unreadable(f"{path}: reading parquet needs pyarrow (pip install pyarrow), or save it as CSV") from None
    try:
        number = 0
        for batch in parquet.ParquetFile(path).iter_batches(10_000):
            for row in batch.to_pylist():
                number += 1
                series.take(number, row)
    # pyarrow's errors for a bad file are ValueError, OSError and its own, which derive from them or from Exception.
    except Exception as trouble:
        raise Unreadable(f"{path}: no parquet file ({str(trouble).splitlines()[0][:200]})") from trouble


def _words_of_trace(found: Slowdown) -> list[str]:
    workers = ", ".join(map(str, found.worst_workers))
    lines = [
        f"{found.verdict}: {found.text}",
        f"slowdown {found.slowdown:.3f} over {found.steps} steps; "
        f"{found.removal_workers:.0%} of the loss goes with the slowest workers ({workers}), "
        f"{found.removal_last_stage:.0%} with the last stage",
    ]
    for title, parts in (
        ("stage", found.only_stage),
        ("operation", found.only_name),
        ("data rank", found.only_data_rank),
    ):
        worst = ", ".join(f"{name} {times:.3f}" for name, times in parts[:4])
        lines.append(f"slowdown if only one {title} is as slow as it is: {worst}")
    return lines
