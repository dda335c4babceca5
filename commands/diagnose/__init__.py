"""``whichrank diagnose WHAT FILE``: what people already have on disk after a bad night, read and explained.

One module per kind of input; each adds its own sub-command (``register``).
"""

from __future__ import annotations

import typer

from ..support.late_commands import late_group

#: By the name of the sub-command, its module; in the order in which --help shows them.
COMMANDS = {
    "kernel-log": ".diagnose_kernel_log",
    "job-log": ".diagnose_job_log",
    "flight-recorder": ".flight_recorder",
    "steps": ".steps",
    "counters": ".counters",
}

diagnose_app = typer.Typer(
    cls=late_group(COMMANDS, __package__),
    help="Read logs, dumps and counters that are already on disk, and say what they show.",
    no_args_is_help=True,
    add_completion=False,
)


@diagnose_app.callback()
def _program() -> None:
    """Keeps sub-commands words of their own: typer does not know that there are any."""


def register(app: typer.Typer) -> None:
    """Adds ``whichrank diagnose``; its commands are imported when they are asked for."""
    app.add_typer(diagnose_app, name="diagnose")
