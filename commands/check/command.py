"""``whichrank check``: flags, what is run, and the exit status."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ...agents.user_files.user_files import end_helpers
from ..settings.check_options import what_is_wrong_with
from ..settings.command_line import CONFIG, KAFKA, PAIRS
from ..support.stderr import say
from .acts.act import ActResult, carry_out
from .acts.other_jobs import OtherJob, refuse_beside_other_jobs
from .acts.reclaim import NoUser, reclaim_acts, uid_of
from .acts.set_up import BadSetUp, read_set_up
from .check_report import print_json, print_lines
from .check_setup import CheckMode, Setup
from .check_telling import check_options, tell_findings
from .expectations_file import BadExpectations, read_expectations
from .expected import Expected
from .finding import EXIT_UNKNOWN, EXIT_USAGE, Family, exit_status, verdict
from .probes import PROBES, WHOLE_S, run_probes

_NAMES = ", ".join(family.value for family in Family)
_LEAST_S, _MOST_S = 1.0, 3600.0

MODE = typer.Option(help="preflight: all, 60 s at most; prolog, epilog: 10 s at most")
ONLY = typer.Option(metavar="FAMILY", help="only this family; may be given several times")
SKIP = typer.Option(metavar="FAMILY", help="not this family; may be given several times")
EXPECT = typer.Option(metavar="FILE.toml", help="GPUs, ports, mounts, versions ... that must be there")
WRITE = typer.Option(metavar="DIR", help="write, sync and remove a small file there")
TIMEOUT = typer.Option(metavar="SECONDS", help="at most so long in all, in place of the mode's")
STRICT = typer.Option("--strict", help="exit status 1 for WARN as well")
VERBOSE = typer.Option("--verbose", help="show what is OK as well")
JSON = typer.Option("--json", help="one JSON document on stdout")
KERNEL_LOG = typer.Option(metavar="FILE", help="in place of /dev/kmsg, journald or the usual files")
SET_UP = typer.Option(metavar="FILE.toml", help="set up what stands there first: limits, clocks, persistence, mounts")
RECLAIM = typer.Option(metavar="USER", help="first what this user has left: processes, shared memory, temporary files")
RECLAIM_TMP = typer.Option(metavar="DIR", help="where temporary files are, beside /dev/shm; may be given several times")
ACT = typer.Option("--act", help="do what --set-up and --reclaim would do; without it they only say it")
ROOT = typer.Option(metavar="DIR", help="where proc, sys and etc are: the host's, seen from a container")


check_app = typer.Typer(invoke_without_command=True)


@check_app.callback()
def check_command(
    context: typer.Context,
    mode: Annotated[CheckMode, MODE] = CheckMode.PREFLIGHT,
    only: Annotated[list[Family] | None, ONLY] = None,
    skip: Annotated[list[Family] | None, SKIP] = None,
    expect: Annotated[Path | None, EXPECT] = None,
    # Text, not Path: of a Path typer asks the file system at once, and a dead mount never answers.
    write: Annotated[list[str] | None, WRITE] = None,
    timeout: Annotated[float | None, TIMEOUT] = None,
    strict: Annotated[bool, STRICT] = False,
    verbose: Annotated[bool, VERBOSE] = False,
    as_json: Annotated[bool, JSON] = False,
    kernel_log: Annotated[str, KERNEL_LOG] = "",
    root: Annotated[Path, ROOT] = Path("/"),
    set_up: Annotated[Path | None, SET_UP] = None,
    reclaim: Annotated[str | None, RECLAIM] = None,
    reclaim_tmp: Annotated[list[str] | None, RECLAIM_TMP] = None,
    act: Annotated[bool, ACT] = False,
    kafka: Annotated[str | None, KAFKA] = None,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """Is this node fit for a job? OK, WARN, CRITICAL or UNKNOWN, with reasons.

    Families: gpu, nvlink, compute (preflight only), network, storage,
    memory, host, services, versions, kernel_log, site. Whatever hangs is left,
    and said. Exit status: 0 OK or WARN; 1 CRITICAL; 2 usage; 3 nothing is
    wrong, but something could not be seen. How to use it in Slurm and
    Kubernetes: docs/check.md.
    """
    if context.invoked_subcommand is not None:
        return
    options = check_options(kafka, config, pairs)
    families = frozenset(only or Family) - frozenset(skip or ())
    if wrong := what_is_wrong_with(options.site_checks):
        _refuse(wrong)
    if not options.site_checks:
        families -= {Family.SITE}
    whole_s = _seconds(mode, families, timeout, root)
    setup = Setup(
        mode=mode,
        families=families,
        expected=_expected(expect, write or []),
        limit_s=whole_s,
        root=root,
        kernel_log=kernel_log,
        site_checks=options.site_checks,
    )
    began_s = time.monotonic()
    acts = _acts(set_up, reclaim, reclaim_tmp or [], root, is_meant=act)
    findings = run_probes(setup, whole_s)
    took_s = time.monotonic() - began_s
    code = exit_status(verdict(findings), strict=strict) if findings else EXIT_UNKNOWN
    if as_json:
        print_json(mode, findings, code, took_s, acts)
    else:
        print_lines(findings, took_s, verbose=verbose, acts=acts)
    tell_findings(options, mode.value, findings, acts)
    raise typer.Exit(code)


def _seconds(mode: CheckMode, families: frozenset[Family], timeout: float | None, root: Path) -> float:
    """That the whole check may take; what makes no sense ends the command."""
    if timeout is not None and not _LEAST_S <= timeout <= _MOST_S:
        _refuse(f"--timeout {timeout:g}: must be {_LEAST_S:g} to {_MOST_S:g} seconds")
    if not any(mode in probe.limits_s and not families.isdisjoint(probe.families) for probe in PROBES):
        _refuse(f"nothing is left to check in mode {mode.value}; families are {_NAMES}")
    if not (root / "proc").is_dir():
        _refuse(f"--root {root}: there is no folder proc in it")
    return timeout if timeout is not None else WHOLE_S[mode]


def _acts(
    set_up: Path | None, reclaim: str | None, folders: list[str], root: Path, *, is_meant: bool
) -> list[ActResult]:
    """What was done, or would be: the set-up, then what is reclaimed."""
    results: list[ActResult] = []
    try:
        if set_up is not None:
            results += carry_out(read_set_up(set_up, root), is_meant=is_meant)
        if reclaim is not None:
            if wrong := [folder for folder in folders if not os.path.isabs(folder)]:
                _refuse(f"--reclaim-tmp {wrong[0]}: must be an absolute path")
            uid = uid_of(reclaim)
            refuse_beside_other_jobs(uid)
            results += carry_out(reclaim_acts(uid, tuple(folders)), is_meant=is_meant)
    except (BadSetUp, NoUser) as error:
        _refuse(str(error))
    except OtherJob as error:  # the check goes on: a job of his runs here, and that is no fault
        say(str(error))
    finally:
        end_helpers()
    return results


def _expected(expect: Path | None, write: list[str]) -> Expected:
    """What the file asks for, with the folders of --write."""
    try:
        expected = read_expectations(expect) if expect is not None else Expected()
    except BadExpectations as error:
        _refuse(str(error))
    for folder in write:
        if not os.path.isabs(folder):
            _refuse(f"--write {folder}: must be an absolute path")
    return replace(expected, storage=replace(expected.storage, write=(*expected.storage.write, *write)))


def _refuse(line: str) -> NoReturn:
    say(line)
    raise typer.Exit(EXIT_USAGE)
