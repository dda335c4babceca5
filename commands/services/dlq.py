"""``whichrank dlq list|show|replay``: what could not be read, why, and sending it again once it can be."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...telemetry import attributes as names
from ...telemetry.printable import printable
from ...telemetry.topics import TOPIC_DLQ
from ...telemetry.whole_numbers import whole_number
from ...transport.kafka import make_client
from ...transport.kafka_client import Client, Fetched, KafkaTrouble
from ...transport.kafka_read import read_whole
from ..settings.settings import TopicsOptions
from ..support.stderr import say

EXIT_USAGE = 2
SEND_S = 60.0
SHOWN_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One message of the dead-letter topic. ``name`` is PARTITION/OFFSET there.

    whole_bytes: its size where it came from; ``value`` may be the beginning only.
    """

    name: str
    reason: str
    topic: str
    place: str
    stamp_ns: int
    key: bytes
    value: bytes
    whole_bytes: int

    @property
    def is_cut(self) -> bool:
        """Whether the message was larger than a letter may be: the rest is only where it came from."""
        return self.whole_bytes > len(self.value)

    @classmethod
    def of(cls, message: Fetched) -> DeadLetter:
        """A letter from the message and its headers; what these do not say is empty."""

        def text(name: str) -> str:
            return message.headers.get(name, b"").decode("utf-8", "replace")

        stamp, size = text(names.DLQ_STAMP_NS), text(names.DLQ_BYTES)
        return cls(
            name=f"{message.partition}/{message.offset}",
            reason=text(names.DLQ_REASON),
            topic=text(names.DLQ_TOPIC),
            place=f"{text(names.DLQ_PARTITION)}/{text(names.DLQ_OFFSET)}",
            stamp_ns=message.stamp_ns if (told_ns := whole_number(stamp)) is None else told_ns,
            key=message.key,
            value=message.value,
            whole_bytes=len(message.value) if (told_bytes := whole_number(size)) is None else told_bytes,
        )


def dlq_list(options: TopicsOptions, *, limit: int, as_json: bool) -> int:
    """Prints the newest ``limit`` letters. The exit status: 0; 2 where Kafka cannot be asked."""
    try:
        letters = list(_letters(make_client(options.kafka_settings())))[-limit:]
    except KafkaTrouble as trouble:
        say(str(trouble))
        return EXIT_USAGE
    if as_json:
        sys.stdout.write(json.dumps({"letters": [_plain(letter) for letter in letters]}) + "\n")
        return 0
    if not letters:
        say(f"{TOPIC_DLQ} is empty: everything could be read")
        return 0
    table = Table(box=None, pad_edge=False)
    for heading in ("letter", "when (UTC)", "from", "bytes", "why"):
        table.add_column(heading, justify="right" if heading == "bytes" else "left", overflow="fold")
    for letter in letters:
        cells = (letter.name, _when(letter), f"{letter.topic} {letter.place}", str(letter.whole_bytes), letter.reason)
        table.add_row(*(Text(printable(cell)) for cell in cells))  # as it is: brackets are no markup
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return 0


def dlq_show(options: TopicsOptions, name: str, *, raw: bool) -> int:
    """Prints one letter; raw: its bytes as they came, on stdout.

    The exit status: 0; 2 where there is no such letter or Kafka cannot be asked.
    """
    try:
        letter = next((each for each in _letters(make_client(options.kafka_settings())) if each.name == name), None)
    except KafkaTrouble as trouble:
        say(str(trouble))
        return EXIT_USAGE
    if letter is None:
        say(f"{TOPIC_DLQ} has no letter {name}; whichrank dlq list names them")
        return EXIT_USAGE
    if raw:
        sys.stdout.buffer.write(letter.value)
        return 0
    for title, content in _plain(letter).items():
        sys.stdout.write(f"{title:<8}{printable(str(content))}\n")
    for start in range(0, min(len(letter.value), SHOWN_BYTES), 16):
        row = letter.value[start : start + 16]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        sys.stdout.write(f"{start:08x}  {row.hex(' '):<47}  {readable}\n")
    if len(letter.value) > SHOWN_BYTES:
        sys.stdout.write(f"... {len(letter.value) - SHOWN_BYTES} more bytes (--raw gives all)\n")
    if letter.is_cut:
        sys.stdout.write(
            f"... {letter.whole_bytes - len(letter.value)} more are only at "
            f"{printable(f'{letter.topic} {letter.place}')}\n"
        )
    return 0


def dlq_replay(options: TopicsOptions, wanted: list[str], *, everything: bool) -> int:
    """Sends letters again to the topic that they came from; what still cannot be read becomes a letter once more.

    everything: all letters. The exit status: 0; 1 where one was not taken; 2 where one is not there or Kafka cannot be
    asked.
    """
    try:
        client = make_client(options.kafka_settings())
        letters = [letter for letter in _letters(client) if everything or letter.name in wanted]
        if missing := sorted(set(wanted) - {letter.name for letter in letters}):
            say(f"{TOPIC_DLQ} has no letter {', '.join(missing)}; whichrank dlq list names them")
            return EXIT_USAGE
        sent, refused = _send(client, letters)
    except KafkaTrouble as trouble:
        say(str(trouble))
        return EXIT_USAGE
    say(f"{sent} of {len(letters)} letters were sent again")
    for line in sorted(set(refused)):
        say(line)
    return 0 if not refused else 1


def _send(client: Client, letters: list[DeadLetter]) -> tuple[int, list[str]]:
    producer = client.producer()
    answers: list[KafkaTrouble | None] = []
    refused: list[str] = []
    asked = 0
    for letter in letters:
        if not letter.topic:
            refused.append(f"letter {letter.name} does not say where it came from")
            continue
        if letter.is_cut:
            refused.append(
                f"letter {letter.name} has only the first {len(letter.value)} of {letter.whole_bytes} bytes; the whole "
                f"is at {letter.topic} {letter.place} (partition/offset), as long as that topic keeps it"
            )
            continue
        try:
            producer.send(letter.topic, letter.key, letter.value, None, lambda sent, trouble: answers.append(trouble))
            asked += 1
        except KafkaTrouble as trouble:
            refused.append(str(trouble))
    until = time.monotonic() + SEND_S
    while len(answers) < asked and time.monotonic() < until:
        producer.flush(1.0)
        time.sleep(0.01)
    producer.close(1.0)
    refused += [str(trouble) for trouble in answers if trouble is not None]
    if len(answers) < asked:
        refused.append(f"{asked - len(answers)} letters were not answered within {SEND_S:.0f} s")
    return sum(trouble is None for trouble in answers), refused


def _letters(client: Client) -> Iterator[DeadLetter]:
    """All letters, oldest first. Raises KafkaTrouble."""
    return map(DeadLetter.of, read_whole(client, TOPIC_DLQ))


def _plain(letter: DeadLetter) -> dict[str, str | int]:
    """As it is shown: a title each."""
    return {
        "letter": letter.name,
        "when": _when(letter),
        "from": f"{letter.topic} {letter.place}",
        "key": letter.key.decode("utf-8", "replace"),
        "bytes": letter.whole_bytes,
        "why": letter.reason,
    }


def _when(letter: DeadLetter) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(letter.stamp_ns / 1e9))
