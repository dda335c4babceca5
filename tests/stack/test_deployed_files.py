"""What runs in these tests is what compose mounts: undo the replaced words, and the files are the same again."""

from __future__ import annotations

import re

from tests.stack.parts.compose import service
from tests.stack.parts.kafka import PLAIN
from tests.stack.parts.placing import replace
from tests.stack.parts.whole_stack import Stack

#: What may be replaced: where somebody listens or is reached, and where something is kept.
PLACE = re.compile(
    r"""
    (?:(?:CLIENT|OUTSIDE)://)?[\w.-]*:\d+              # host:port, or a listener of Kafka
    | /[\w./-]+                                        # a folder
    | host:\ [\d.]+,\ port:\ \d+
    """,
    re.VERBOSE,
)


def test_only_places_are_replaced(stack: Stack) -> None:
    words = {word: new for placed in stack.placed for word, new in placed.words.items()}
    strange = [(old, new) for old, new in words.items() if not (PLACE.fullmatch(old) and PLACE.fullmatch(new))]
    assert strange == []


def test_what_runs_is_what_compose_mounts(stack: Stack) -> None:
    for placed in stack.placed:
        undone = replace(placed.target.read_text(), {new: old for old, new in placed.words.items()})
        assert undone == placed.source.read_text(), placed.source


def test_every_file_that_compose_mounts_into_these_services_runs_here(stack: Stack) -> None:
    mounted = {
        path
        for name in ("kafka", "collector", "prometheus", "jaeger")
        for path in service(name, PLAIN.overlays).binds.values()
    }
    assert {placed.source for placed in stack.placed} == mounted
