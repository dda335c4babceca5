"""The JSON of ``whichrank diagnose job-log``: what was read of logs in, docs/diagnose-job-log.md out. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...diagnosis.job_log.job_log_reader import JobLog
from ...diagnosis.job_log.log_verdict import failures, restart_word, terminal
from ...diagnosis.job_log.model import Episode, Progress, StatementGroup, Suspects
from ...diagnosis.job_log.witnesses import of_exit_code
from .rank_ranges import ranges

SCHEMA = 1


def write_job_log(found: JobLog) -> dict[str, Any]:
    """The JSON document that ``--json`` prints; docs/diagnose-job-log.md has its meaning."""
    verdict = found.verdict
    failure = verdict.failure
    return {
        "schema": SCHEMA,
        "files": list(found.names),
        "lines": found.lines,
        "class": failure.name if failure else None,
        "bucket": failure.bucket.value if failure else None,
        "scope": failure.scope.value if failure else None,
        "is_cause": verdict.is_cause,
        "confidence": verdict.confidence,
        "why": verdict.why,
        "suspects": {
            "ranks": ranges(verdict.suspects.ranks),
            "nodes": list(verdict.suspects.nodes),
            "devices": list(verdict.suspects.devices),
            "why": verdict.suspects.why or None,
        },
        "missing": ranges(verdict.suspects.missing),
        "peers": list(verdict.suspects.peers),
        "primary": _statement(found, verdict.primary, verdict.suspects) if verdict.primary else None,
        "precursors": [_statement(found, group) for group in verdict.precursors],
        "confirmations": [_statement(found, group) for group in verdict.confirmations],
        "consequences": [_statement(found, group) for group in verdict.consequences],
        "advice": {
            "action": verdict.action.value if verdict.action else None,
            "restart": restart_word(verdict).value,
            "text": verdict.advice,
        },
        "warnings": list(verdict.warnings),
        "episodes": [_episode(found, episode) for episode in failures(found.episodes)],
        "timeouts": [
            {
                "operations": sorted(wave.operations),
                "timeout_ms": wave.timeout_ms,
                "count": wave.count,
                "ranks": ranges(wave.ranks),
                "rank_count": len(wave.ranks),
                "lines": wave.lines,
            }
            for wave in found.waves
        ],
        "progress": {
            "first": _progress(found, found.first_progress),
            "last": _progress(found, found.last_progress),
            "checkpoint": _progress(found, found.last_checkpoint),
        },
    }


def _statement(found: JobLog, group: StatementGroup, suspects: Suspects | None = None) -> dict[str, Any]:
    first = group.first
    where = first.where
    # Who only reports another is no place to look at.
    line, reporter = first.line, None
    others = suspects is not None and bool(suspects.why) and bool(suspects.ranks or suspects.peers)
    if first.points_elsewhere or (others and suspects is not None and line.rank not in suspects.ranks):
        reporter = {"rank": line.rank, "node": line.node}
        line = replace(line, rank=None, local_rank=None, node=first.target.node)
    return {
        "file": found.names[first.line.source],
        "line": first.line.number,
        "first_line": first.first_line,
        "text": first.text,
        "class": of_exit_code(first).failure.name,
        "role": first.role.value,
        "form": first.form.value,
        "exception": first.exception or None,
        "where": {"file": where.file, "line": where.line, "function": where.function} if where else None,
        "time": time_of(group),
        "rank": line.rank,
        "local_rank": line.local_rank,
        "node": line.node,
        "device": first.device,
        "peer": first.target.peer,
        "reported_by": reporter,
        "exit_code": first.exit_code,
        "count": group.count,
        "ranks": ranges(group.ranks),
        "rank_count": len(group.ranks),
        "lines": [number for _, number in group.lines],
    }


def _episode(found: JobLog, episode: Episode) -> dict[str, Any]:
    end = terminal(episode)
    return {
        "status": episode.status.value,
        "terminal": _statement(found, end) if end else None,
        "statements": len(episode.groups) + episode.overflow,
        "progress_before": _progress(found, episode.before),
        "progress_after": _progress(found, episode.after),
    }


def _progress(found: JobLog, progress: Progress | None) -> dict[str, Any] | None:
    if progress is None:
        return None
    return {
        "file": found.names[progress.source],
        "line": progress.number,
        "step": progress.step,
        "total": progress.total,
    }


def time_of(group: StatementGroup) -> str | None:
    """The time of the group's first line, as the log writes it; None where its lines have no time."""
    stamp = group.first.line.own_stamp or group.first.line.stamp
    return stamp.text if stamp else None
