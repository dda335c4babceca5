"""Reads a flight recorder's dump in a process of its own, with its user's rights: the program of that process.

    main(words)      the dump is its standard input, its facts are its standard output

What the dump holds is read by ``diagnosis.flight_recorder``, which executes nothing of it; a file that fills the memory
all the same ends this process, not the agent. Nothing that a user wrote is believed by whoever reads the answer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ...diagnosis.flight_recorder.dump_facts import write_facts
from ...diagnosis.flight_recorder.dump_files import BadDump, dumps_in
from ...diagnosis.flight_recorder.rank_dump import decode_dump

#: More than any buffer that people set.
MOST_ENTRIES = 100_000
#: Exit status where the content is no dump of that rank: standard error says why.
NO_DUMP = 3


def main(words: Sequence[str]) -> None:
    """Tells the facts of a dump. words: the file's name, and the rank that it must be of."""
    name, rank = words[0], int(words[1])
    try:
        facts = facts_of(name, rank, sys.stdin.buffer.read())
    except BadDump as wrong:
        sys.stderr.write(str(wrong))
        sys.exit(NO_DUMP)
    except (MemoryError, RecursionError):
        sys.stderr.write("holds more than can be read here")
        sys.exit(NO_DUMP)
    sys.stdout.write(facts)


def facts_of(name: str, rank: int, content: bytes) -> str:
    """The facts (``dump_facts``) of the dump of this rank. Raises BadDump: it is none, or another rank's."""
    found = list(dumps_in(name, content))
    if not found:
        raise BadDump("holds no flight-recorder dump (no list of entries)")
    if len(found) > 1 or found[0][0] != rank:
        raise BadDump(f"is not the dump of rank {rank} alone, but of {', '.join(str(one) for one, _ in found[:4])}")
    facts = write_facts(decode_dump(found[0][1], rank, name, keep=MOST_ENTRIES))
    if not facts:
        raise BadDump("has more process groups with open calls than can be told")
    return facts
