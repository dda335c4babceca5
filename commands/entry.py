"""Where the program begins: a command whose packages are not installed says which extra brings them, in one line.

The standard library alone, and what imports nothing else: without any extra, nothing else could say it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..telemetry.missing_packages import how_to_install, missing_package

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
    """words: that were given to the program."""
    command = next((word for word in words if not word.startswith("-")), "")
    extra = EXTRAS.get(command, AGENT)
    return ALL if extra == "grafana" and package in OF_THE_TOPIC else extra
