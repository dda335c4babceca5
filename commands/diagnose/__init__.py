"""``whichrank diagnose WHAT FILE``: what people already have on disk after a bad night, read and explained.

One module per kind of input; each adds its own sub-command (``register``) and imports what it needs when it is called.
"""

from __future__ import annotations

from importlib import import_module

import typer

#: Modules beside this one, in the order in which --help shows them.
COMMANDS: tuple[str, ...] = ("kernel_log", "job_log", "flight_recorder", "steps", "counters")


def diagnose_app() -> typer.Typer:
    app = typer.Typer(
        name="diagnose",
        help="Read logs, dumps and counters that are already on disk, and say what they show.",
        no_args_is_help=True,
        add_completion=False,
    )

    @app.callback()
    def _program() -> None:
        """Keeps sub-commands words of their own, however few there are."""

    for name in COMMANDS:
        import_module(f".{name}", __package__).register(app)
    return app
