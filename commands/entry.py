"""Where the program begins: a command whose packages are not installed says which extra brings them, in one line.

The standard library alone, and what imports nothing else: without any extra, nothing else could say it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..telemetry.missing_packages import how_to_install, missing_package
from .support import evaluation_commands

EXIT_USAGE = 2
#: What brings the packages of each command, where it is not ``AGENT``.
EXTRAS = {
    **dict.fromkeys(("process", "topics", "dlq", "evidence", "notify", "respond", "plan"), "processors"),
    "grafana": "grafana",
}
AGENT = "agent"
#: ``whichrank grafana annotate`` reads what came over Kafka, and talks to a Grafana.
ALL = "all"
OF_THE_TOPIC = ("kafka-python", "numpy", "opentelemetry-proto", "protobuf")


def main() -> None:
    """Entry point of the ``whichrank`` program."""
    missing = _missing_distribution(sys.argv[1:])
    if missing:
        print(f"whichrank: {missing}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    try:
        from .main import main as program

        program()
    except ModuleNotFoundError as error:
        package = missing_package(error)
        if not package:
            raise
        print(f"whichrank: {how_to_install(package, extra_of(sys.argv[1:], package))}", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def extra_of(words: Sequence[str], package: str) -> str:
    """The extra to install for a package that is missing. words: that were given to the program."""
    command = _command_of(words)
    extra = EXTRAS.get(command, AGENT)
    return ALL if extra == "grafana" and package in OF_THE_TOPIC else extra


def _command_of(words: Sequence[str]) -> str:
    return next((word for word in words if not word.startswith("-")), "")


def _missing_distribution(words: Sequence[str]) -> str:
    """What to say of a command that came with a distribution which is not here; else empty."""
    if _command_of(words) not in evaluation_commands.COMMANDS or evaluation_commands.installed_commands():
        return ""
    said = how_to_install(evaluation_commands.DISTRIBUTION, evaluation_commands.EXTRA)
    return f"{said}; {evaluation_commands.IN_A_CHECKOUT}"
