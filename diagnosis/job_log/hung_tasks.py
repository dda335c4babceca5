"""The kernel's word of a task that has been blocked for minutes, with the stack below it that says in what.

The stack is read as ``kernel_log`` reads it: the innermost frame that a known file system or driver owns decides. A
stack that nobody knows leaves the line to the rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from ..kernel_log.hung_task import waits_for
from .model import Form, LineRole, LogLine, Witness
from .taxonomy import failure_classes
from .witnesses import of_line

BEGIN = re.compile(r"(?:INFO: )?task (?P<task>\S+:\d+) blocked for more than (?P<seconds>\d+) seconds")
FRAME = re.compile(
    r"(?:\[<[0-9a-f]+>\] )?(?:\? )?(?P<function>[A-Za-z_][\w.]*)\+0x[0-9a-f]+/0x[0-9a-f]+(?: \[(?P<module>\w+)\])?"
)
#: Class of what is waited for, by the component or the domain of its table entry.
CLASSES = {
    "gpu_driver": "gpu_hardware", "accelerator": "gpu_hardware", "accelerator_driver": "gpu_hardware",
    "storage": "filesystem_error", "network": "network_link",
}  # fmt: skip
#: What else stands between the first line and the stack.
BETWEEN = (
    "Tainted:", "Not tainted", '"echo 0', "task:", "Call Trace", "<TASK>", "RIP:", "RSP:", "RAX:", "RDX:", "RBP:",
    "R10:", "R13:",
)  # fmt: skip
MOST_LINES = 80


@dataclass(slots=True)
class _Hung:
    line: LogLine
    left: int = MOST_LINES
    frames: list[tuple[str, str]] = field(default_factory=list)


class HungTasks:
    """``feed`` lines; take witnesses from ``done``."""

    def __init__(self) -> None:
        self.done: list[Witness] = []
        self._open: _Hung | None = None

    def wants_next(self) -> bool:
        """Whether the report of a hung task is open, whose stack may follow."""
        return self._open is not None

    def feed(self, line: LogLine) -> bool:
        """Whether the line is of the report of a hung task. A report that is over is added to ``done``."""
        if "blocked for more than" in line.text and BEGIN.search(line.text):
            self.finish()
            self._open = _Hung(line)
            return True
        hung = self._open
        if hung is None:
            return False
        hung.left -= 1
        if frame := FRAME.match(line.text):
            hung.frames.append((frame["function"], frame["module"] or ""))
            return True
        if line.text.startswith("</TASK>") or hung.left <= 0:
            self.finish()
            return True
        if line.text.startswith(BETWEEN):
            return True
        self.finish()
        return False

    def finish(self) -> None:
        """Ends the open report: ``done`` gets a witness by what its stack waits for, else by its first line alone."""
        hung, self._open = self._open, None
        if hung is None:
            return
        found = waits_for(hung.frames)
        failure = CLASSES.get(found[0].component, CLASSES.get(found[0].domain.value)) if found else None
        if found is None or failure is None:
            self.done += of_line(replace(hung.line, level=""))
            return
        text = f"{hung.line.text} In {found[1]}: {found[0].component}"
        self.done.append(
            Witness(
                line=hung.line,
                failure=failure_classes()[failure],
                role=LineRole.INITIATING,
                form=Form.MESSAGE,
                text=text,
                rule="hung_task",
                first_line=hung.line.number,
            )
        )
