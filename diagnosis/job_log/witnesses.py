"""Makes witnesses of lines and of tracebacks: which rule, which role, whose rank, which device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from ...telemetry.ring_layout import cut_text
from .carriers import LOUD_LEVELS, QUIET_LEVELS
from .details import devices_in
from .gpu_memory import is_held_by_others
from .log_prefix import node_in, rank_in, whom_in
from .model import Collective, FailureClass, Form, LineRole, LogLine, Rank, TracebackFrame, Witness
from .targets import Target, target_of
from .taxonomy import exception_types, failure_classes, fallback_types, frame_rules, rules, types_asked_first
from .tracebacks import ExceptionLink, Raised, bare_exception, quoted_exceptions

#: Of a statement this much is kept.
KEPT_CHARS = 500
EXIT_CODE = re.compile(
    r"(?:exit ?code|exited with(?: exit)?(?: code| status)?|return code|status|code)\s*[:=]?\s*(?P<code>-?\d{1,3})\b|"
    r"(?:on signal |KILLED BY SIGNAL: |died with <Signals\.\w+: )(?P<signal>\d{1,2})\b",
    re.IGNORECASE,
)
#: What an exit code alone tells; 128 + n is a shell's way of saying signal n.
EXIT_CLASSES = {
    4: "native_crash", 6: "native_crash", 7: "bus_error", 8: "native_crash", 9: "process_killed",
    11: "segmentation_fault", 15: "terminated", 2: "user_cancelled",
}  # fmt: skip
OPERATION = re.compile(
    r"SeqNum=(?P<sequence>\d+),\s*OpType=(?P<operation>\w+)(?:.{0,400}?Timeout\(ms\)=(?P<timeout>\d+))?"
)
IMPORTS = re.compile(r"(?:import|from) \w|.*import_module\(")
LOCAL_RANK = re.compile(r"local_rank: ?(\d{1,4})")
#: What a writer notices first of what its file system says a moment later.
WRITE_FAILS = {
    "checkpoint_write": frozenset(
        {"disk_full", "quota_exceeded", "permission_denied", "filesystem_read_only", "filesystem_error"}
    )
}
#: What is not in the path where it was looked for after the network had been asked.
NOT_THERE = frozenset({"checkpoint_missing", "file_not_found"})
PATH = re.compile(r"(?:^|[\s'\"=(])/[\w.-]+/")
#: Rules that hold although the line's own level says that all is well.
EVEN_IF_QUIET = frozenset(
    {"loss_value", "loss_scale_at_minimum", "time_limit", "preempted", "section_open", "heartbeat_stuck", "user_buffer",
     "silent_corruption"}
)  # fmt: skip


def of_line(line: LogLine) -> Iterator[Witness]:
    """Witnesses in a line outside of tracebacks; none where it says nothing of a failure or is only context."""
    if "Traceback (most recent call last)" in line.text:
        for kind, message in list(quoted_exceptions(line.text))[-1:]:
            yield replace(of_exception(line, kind, message), quoted=True)
        return
    rule = rules().find(line.text)
    if line.level in QUIET_LEVELS and (rule is None or rule.name not in EVEN_IF_QUIET):
        return
    if rule is not None and rule.role is LineRole.CONTEXT:
        return
    if bare := bare_exception(line):
        yield of_exception(line, *bare)
    elif rule is not None:
        yield _witness(line, rule.failure, rule.role, Form.MESSAGE, line.text, rule=rule.name)
    elif line.level in LOUD_LEVELS or line.text.startswith(("error: ", "Error: ", "fatal: ", "FATAL: ")):
        yield _witness(
            line, failure_classes()["error_message"], LineRole.INITIATING, Form.MESSAGE, line.text or line.logger
        )


def of_exception(line: LogLine, kind: str, message: str, raised: Raised | None = None) -> Witness:
    """The witness of an exception, by the rule of its text, else by its type.

    line: where type and message stand. raised: None where no traceback came with it.
    """
    short = re.split(r"\.|::", kind.split("(")[0])[-1]
    text = f"{kind}: {message}" if message else kind
    rule = rules().find(text)
    role: LineRole
    if rule is not None and rule.role is not LineRole.CONTEXT and rule.failure is not None:
        failure, role, name = rule.failure, rule.role, rule.name
    else:
        failure = failure_classes()[exception_types().get(short, "exception")]
        role, name = _role(failure), ""
    if raised is not None and raised.is_ending:
        role = LineRole.TEARDOWN
    elif raised is not None and raised.is_handled:
        role = LineRole.CONTEXT
    frames = tuple(raised.frames) if raised is not None else ()
    first = raised.first.number if raised is not None else line.number
    return refined(
        replace(
            _witness(_warned(line, raised), failure, role, Form.EXCEPTION, text, rule=name),
            exception=kind,
            frames=frames,
            first_line=first,
        )
    )


def _warned(line: LogLine, raised: Raised | None) -> LogLine:
    return replace(line, level="WARNING") if raised is not None and raised.is_warned and not line.level else line


def refined(witness: Witness) -> Witness:
    """The witness with the class that its stack tells more exactly; itself where no frame does."""
    if witness.failure.name == "exception" and _is_importing(witness.frames):
        return replace(witness, failure=failure_classes()["import_failure"])
    for rule in frame_rules() if witness.frames else ():
        if witness.failure.name in rule.of and any(
            rule.pattern.search(frame.function) or rule.pattern.search(frame.file) for frame in witness.frames
        ):
            return replace(witness, failure=rule.failure)
    return witness


def _is_importing(frames: Sequence[TracebackFrame]) -> bool:
    """Whether it was raised while one module loaded another: what is installed does not fit together."""
    return any(
        one.function == other.function == "<module>" and IMPORTS.match(one.code) is not None
        for one, other in pairwise(frames)
    )


def of_chain(chain: Sequence[Raised]) -> Iterator[Witness]:
    """The witnesses of linked exceptions: one is the failure, the others report it.

    Yields nothing where one of them is only context (an exception that was handled).
    """
    witnesses = [of_exception(raised.line, raised.kind, raised.message, raised) for raised in chain]
    if any(witness.role is LineRole.CONTEXT for witness in witnesses):
        return
    cause = _cause(chain, witnesses)
    for index, witness in enumerate(witnesses):
        if index == cause:
            yield witness
        else:
            yield replace(
                witness, wraps=True, role=LineRole.TEARDOWN if witness.role is LineRole.TEARDOWN else LineRole.CASCADE
            )


def _cause(chain: Sequence[Raised], witnesses: Sequence[Witness]) -> int:
    """The first of a chain, but for carriers, and for what was raised only to try something else."""
    cause = 0
    for index in range(1, len(chain)):
        if chain[index].link is ExceptionLink.CARRIED_BY:
            cause = index
            continue
        before, this = witnesses[cause], witnesses[index]
        if this.failure.name in WRITE_FAILS.get(before.failure.name, ()):
            cause = index
            continue
        kind = before.exception.split(".")[-1]
        is_fallback = kind in fallback_types() and not before.rule
        says_more = (
            bool(this.rule) and this.role is LineRole.INITIATING and this.failure.rank in (Rank.ROOT, Rank.FAILURE)
        )
        is_then_on_disk = (
            kind in types_asked_first() and this.failure.name in NOT_THERE and bool(PATH.search(this.text))
        )
        is_handled = is_fallback and (chain[index].link is ExceptionLink.WHILE_HANDLING or says_more)
        if (is_handled and this.role is LineRole.INITIATING) or (is_then_on_disk and says_more):
            cause = index
    return cause


def of_exit_code(witness: Witness) -> Witness:
    """The witness with the failure class of the signal that its exit code tells; itself where that is none."""
    number = signal_of(witness.exit_code)
    if number is None or number not in EXIT_CLASSES:
        return witness
    failure = failure_classes()[EXIT_CLASSES[number]]
    return replace(witness, failure=failure)


def signal_of(exit_code: int | None) -> int | None:
    """The signal that an exit code tells of: -N as Python has it, 128 + N (N from 1 to 31) as shells do; else None."""
    if exit_code is None:
        return None
    if exit_code < 0:
        return -exit_code
    return exit_code - 128 if 128 < exit_code < 160 else None


def _held_by_others(failure: FailureClass, text: str) -> FailureClass:
    if failure.name == "cuda_out_of_memory" and is_held_by_others(text, (), has_trained=True):
        return failure_classes()["gpu_memory_held"]
    return failure


def _witness(
    line: LogLine, failure: FailureClass | None, role: LineRole, form: Form, text: str, *, rule: str = ""
) -> Witness:
    assert failure is not None
    failure = _held_by_others(failure, text)
    is_report = failure.name == "launcher_report"
    operation = OPERATION.search(text) if failure.name == "collective_timeout" else None
    target = target_of(text)
    if target.peer is not None and target.peer == line.node:
        target = replace(target, peer=None)
    return Witness(
        line=_with_whom(line, text, target),
        failure=failure,
        role=role,
        form=Form.LAUNCHER if is_report else form,
        text=cut_text(text, KEPT_CHARS),
        rule=rule,
        first_line=line.number,
        wraps=is_report,
        exit_code=_exit_code(text) if is_report else None,
        device=target.device or next(iter(devices_in(text)), None) or line.device,
        target=target,
        collective=operation
        and Collective(
            operation=operation["operation"].lower(),
            sequence=int(operation["sequence"]),
            timeout_ms=int(operation["timeout"]) if operation["timeout"] else None,
        ),
    )


def _exit_code(text: str) -> int | None:
    match = EXIT_CODE.search(text)
    if match is None:
        return None
    return int(match["code"]) if match["code"] else -int(match["signal"])


def _with_whom(line: LogLine, text: str, target: Target) -> LogLine:
    """Rank and node from the text where nothing before it told them, or where it names them as what it is about."""
    if (both := whom_in(text)) is not None:
        return replace(line, rank=both[0], node=both[1])
    if target.rank is not None and not target.is_other:
        line = replace(line, rank=target.rank)
    if target.node is not None:
        line = replace(line, node=target.node)
    rank, local, node = line.rank, line.local_rank, line.node
    if rank is None:
        rank = rank_in(text)
    if local is None and "local_rank" in text and (match := LOCAL_RANK.search(text)):
        local = int(match[1])
    if not node:
        node = node_in(text)
    if (rank, local, node) == (line.rank, line.local_rank, line.node):
        return line
    return replace(line, rank=rank, local_rank=local, node=node)


def _role(failure: FailureClass) -> LineRole:
    return {Rank.CASCADE: LineRole.CASCADE, Rank.TEARDOWN: LineRole.TEARDOWN}.get(failure.rank, LineRole.INITIATING)
