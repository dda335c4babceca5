"""A published trace of a slow job (ByteDance's straggler-analysis, job ST), and what its authors say of it.

Needs pyarrow, which whichrank itself does not, and the trace: without them nothing is measured, and the line says so.
"""

from __future__ import annotations

from pathlib import Path

from ...diagnosis.phase_times.pipeline_operations import PipelineOperation
from ...diagnosis.phase_times.what_if_replay import Slowdown, what_if
from ...simulator.scoring.summary import ScoreLine, not_run

TRACE = "trace-ST.parquet"
#: Theirs, and how far off ours may be.
SLOWDOWN, SLOWDOWN_OFF = 1.179, 0.02
LAST_STAGE, LAST_STAGE_OFF = 1.219, 0.05
VERDICT, MOST_OF_WORKERS = "last_stage", 0.5


def straggler_trace_lines(folder: Path) -> list[ScoreLine]:
    """Lines on whether the published trace is explained as its authors do. folder: with ``trace-ST.parquet``.

    One line where there is none (not run), or it cannot be read (SHORT).
    """
    path = folder / TRACE
    try:
        found = what_if(read_operations(path))
    except (ImportError, FileNotFoundError) as missing:
        return [not_run("straggler trace ST", f"S {SLOWDOWN}, {VERDICT}", f"{type(missing).__name__}: {missing}")]
    except (OSError, ValueError, KeyError, TypeError) as trouble:
        reason = f"{type(trouble).__name__}: {trouble}"
        return [ScoreLine(name="straggler trace ST", asked="can be read", measured=reason, share="0 of 1", ok=False)]
    return lines_of(found)


def lines_of(found: Slowdown) -> list[ScoreLine]:
    """A line for each figure of the replay, beside the one that the trace's authors have published."""
    return [
        _near("slowdown S", found.slowdown, SLOWDOWN, SLOWDOWN_OFF),
        _near("share of the last stage M_S", found.removal_last_stage, LAST_STAGE, LAST_STAGE_OFF),
        _line("verdict", VERDICT, found.verdict, found.verdict == VERDICT),
        _line(
            "share of the worst workers M_W",
            f"< {MOST_OF_WORKERS:g}: no bad worker",
            f"{found.removal_workers:.3f}",
            found.removal_workers < MOST_OF_WORKERS,
        ),
    ]


def read_operations(path: Path) -> list[PipelineOperation]:
    """The operations in a parquet file of the trace.

    Raises ImportError without pyarrow, OSError, and ValueError (of pyarrow) for what is no parquet file.
    """
    from pyarrow import parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]

    return [
        PipelineOperation(
            worker=row["rank"],
            data_rank=row["dp_rank"],
            stage=row["stage"],
            step=row["step"],
            name=row["optype"],
            start_s=row["start_ts"],
            duration_s=row["duration"],
            sequence=row["seq_id"],
        )
        for row in parquet.read_table(path).to_pylist()
    ]


def _near(name: str, value: float, asked: float, off: float) -> ScoreLine:
    return _line(name, f"{asked:.3f} +- {off:g}", f"{value:.3f}", abs(value - asked) <= off)


def _line(name: str, asked: str, measured: str, ok: bool) -> ScoreLine:
    return ScoreLine(name=f"straggler trace ST: {name}", asked=asked, measured=measured, share=f"{int(ok)} of 1", ok=ok)
