"""``python -m whichrank.evaluation.reference.reference_page [--check]``: docs/reference.md and docs/exporters anew."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import settings, telemetry
from .exporter_pages import stale_pages, write_pages

FILE = Path(__file__).parents[2] / "docs" / "reference.md"
_BEGINNING = """# Reference

Made by `make reference` from the code; a test holds it current. What things mean and why is in the other documents:
[telemetry](telemetry.md), [incidents](incident.md), [verdicts](verdicts.md), [operations](operations.md)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes docs/reference.md and docs/exporters anew if they are not current. With --check it only says so.

    The exit status: 1 where --check finds that it is not current.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 where the file is not current"
    )
    options = parser.parse_args(arguments)
    stale = stale_pages()
    if stale and options.check:
        print(f"docs/exporters: {', '.join(stale)} are not what the code makes: make reference", file=sys.stderr)
        return 1
    if stale:
        write_pages()
    text = reference()
    if FILE.is_file() and FILE.read_text(encoding="utf-8") == text:
        return 0
    if options.check:
        print(f"{FILE.name} is not what the code makes: make reference", file=sys.stderr)
        return 1
    FILE.write_text(text, encoding="utf-8")
    return 0


def reference() -> str:
    """The whole page, from the code alone."""
    parts = (
        _BEGINNING,
        settings.settings(),
        settings.commands(),
        telemetry.metrics(),
        telemetry.spans(),
        telemetry.events(),
        telemetry.topics(),
        telemetry.closed_sets(),
    )
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
