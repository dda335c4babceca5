"""Bytes changed at random where the judge reads some: messages of the bus, frames of peers, pickles, files of state.

By hypothesis, which changes sound input at places that it draws, and makes what fails small; it is not guided by
coverage. For `--fuzz-s` of CPU each. What failed is repeated by its seed: FUZZ_SEED=N.
"""

from __future__ import annotations

import contextlib
import pickle
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.attacks.a_judge import JUDGE_BYTES, Judge, forget_peak, peak_mb
from tests.attacks.attacks_fuzz import Nonsense, first_seed
from tests.attacks.attacks_peers import KEY, Hub, _exactly
from tests.attacks.register import Outcome, attack, fuzz_s
from tests.attacks.users import own_memory_limited
from whichrank.diagnosis.flight_recorder.pickle_values import BadPickle, load_pickle
from whichrank.telemetry.otlp import encode_payloads
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_FINDINGS, TOPIC_LOGS, TOPIC_METRICS, TOPIC_WORDS
from whichrank.transport.hub_news import PeerJoined
from whichrank.transport.peer_frames import (
    NONCE_BYTES,
    PeerFrame,
    PeerMessage,
    pack_frame,
    pack_message,
    pack_ping,
    pack_proof,
)

MORE_MB = 300
SLOWEST_S = 5.0
_EXAMPLES = 50
_NUMBERS = st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1])
#: A place, as a share of the length, and what stands there then.
_CHANGES = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.one_of(
            st.binary(max_size=8),
            _NUMBERS.map(lambda number: number.to_bytes(8, "big")),
            _NUMBERS.map(lambda number: number.to_bytes(8, "little")),
            st.sampled_from(["cut", "drop", "twice", "turn"]),
        ),
    ),
    max_size=6,
)


def changed(content: bytes, changes: Sequence[tuple[float, bytes | str]]) -> bytes:
    """The bytes with each change at its place."""
    for share, change in changes:
        at = int(share * len(content))
        if isinstance(change, bytes):
            content = content[:at] + change + content[at + len(change) :]
        elif change == "cut":
            content = content[:at]
        elif change == "drop":
            content = content[:at] + content[at + 7 :]
        elif change == "twice":
            content = content[: 1 << 18] + content[at : 1 << 18]
        else:
            content = content[:at] + content[at : at + 1].translate(_TURNED) + content[at + 1 :]
    return content


_TURNED = bytes(value ^ 0x40 for value in range(256))


class Rounds:
    """Calls a function with drawn input for so long; keeps the first that fails, and the longest that one took."""

    def __init__(self) -> None:
        self.count, self.slowest_s, self.failed = 0, 0.0, ""

    def run(self, act: Callable[..., None], **drawn: st.SearchStrategy[Any]) -> None:
        """act: fails by an exception."""

        def timed(**values: Any) -> None:
            began = time.process_time()
            act(**values)
            self.count += 1
            self.slowest_s = max(self.slowest_s, time.process_time() - began)

        began, number = time.process_time(), first_seed()
        while time.process_time() - began < fuzz_s() and not self.failed:
            number += 1
            options = settings(max_examples=_EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
                               suppress_health_check=list(HealthCheck))  # fmt: skip
            try:
                seed(number)(options(given(**drawn)(timed)))()
            except Exception as error:  # whatever it is, it is what was looked for
                self.failed = f"seed {number}: {type(error).__name__}: {error}"[:300].replace("\n", " ")


@attack("F11", "c", "messages of the bus whose bytes are changed, on each topic, beside an open incident",
        asked="dead letters at most; the incident is unchanged, memory bounded", limit_s=150, fuzz=True)  # fmt: skip
def messages(folder: Path) -> Outcome:
    with own_memory_limited(JUDGE_BYTES) as words:
        judge, nonsense = Judge(folder), Nonsense(first_seed())
        judge.start_job()
        judge.kill_rank()
        judge.pass_time(60)
        told = judge.incidents()
        forget_peak()
        before, rounds = peak_mb(), Rounds()

        def take(topic: str, first: int, changes: list[tuple[float, bytes | str]]) -> None:
            sound = samples[first % len(samples)]
            judge.put_bytes(changed(sound, changes), topic=topic, pass_s=0.01)
            assert not judge.runner.contained, judge.said[-1]
            assert judge.incidents() == told
            del judge.outputs[2_000:-2_000]

        samples = list(_sound_messages(judge, nonsense))
        topics = st.sampled_from([TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_METRICS, TOPIC_WORDS, TOPIC_FINDINGS])
        rounds.run(take, topic=topics, first=st.integers(0, 1 << 16), changes=_CHANGES)
        more, lives = peak_mb() - before, judge.lives()
        return Outcome(
            held=not rounds.failed and lives and more < MORE_MB and rounds.slowest_s < SLOWEST_S,
            measured=f"{rounds.count} messages, {judge.letters} dead letters, +{more} MB, lives: {lives}; "
            f"{rounds.failed or words()}",
        )


def _sound_messages(judge: Judge, nonsense: Nonsense) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < 200:
        each = nonsense.event("evil", judge.now_ns) if len(found) % 2 else nonsense.block("evil", judge.now_ns)
        with contextlib.suppress(ValueError, TypeError, OverflowError, UnicodeError):
            found.append(encode_payloads([each]))
    return found


@attack("F12", "b", "frames of peers whose bytes are changed, before and after a true HELLO",
        asked="ends its own connection; true followers join, memory bounded", limit_s=150, fuzz=True)  # fmt: skip
def frames(folder: Path) -> Outcome:
    hub = Hub()
    forget_peak()
    before, rounds = peak_mb(), Rounds()
    message = pack_message(PeerMessage(number=1, topic=TOPIC_BLOCKS, key="k", value=bytes(200)))
    after_hello = [
        pack_frame(PeerFrame.MESSAGE, message) * 3, pack_frame(PeerFrame.PING, pack_ping(1, 1)),
        pack_frame(PeerFrame.BYE), pack_frame(PeerFrame.INCIDENT, b"{}") + pack_frame(PeerFrame.REQUEST, b"{}"),
    ]  # fmt: skip

    def speak(
        first: int, knows: bool, hello: list[tuple[float, bytes | str]], then: list[tuple[float, bytes | str]]
    ) -> None:
        connection = hub.dial() if not knows else hub.speak()
        with connection, contextlib.suppress(ConnectionError, TimeoutError):
            if not knows:
                challenge = _exactly(connection, 5 + 1 + NONCE_BYTES)
                said = {"key": KEY, "job": "job", "node": "n", "instance": "i", "nonce": "00" * 32, "mono_ns": 1}
                proof = pack_proof(b"s" * 32, "follower", challenge[6:], said)
                connection.sendall(changed(pack_frame(PeerFrame.HELLO, proof), hello))
            connection.sendall(changed(after_hello[first % len(after_hello)], then))
        hub.hub.take()
        assert hub.hub._thread.is_alive(), "the hub has ended"  # noqa: SLF001

    rounds.run(speak, first=st.integers(0, 9), knows=st.booleans(), hello=_CHANGES, then=_CHANGES)
    (took_s,) = hub.joins_within(5.0)
    joined = [news for news in hub.hub.take() if isinstance(news, PeerJoined) and news.node == "true-0"]
    more = peak_mb() - before
    return Outcome(
        held=not rounds.failed and took_s < 2.0 and len(joined) == 1 and more < 150,
        measured=f"{rounds.count} connections, +{more} MB, a true follower joins in {took_s:.2f} s {rounds.failed}",
    )


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4) | st.tuples(inner)
    ),
    max_leaves=25,
)


@attack("F13", "a", "pickles of plain values of each protocol, whose bytes are changed",
        asked="values, or one reason; nothing else, quick, bounded", limit_s=120, fuzz=True)  # fmt: skip
def pickles(folder: Path) -> Outcome:
    forget_peak()
    before, rounds = peak_mb(), Rounds()

    def load(value: object, protocol: int, changes: list[tuple[float, bytes | str]]) -> None:
        with contextlib.suppress(BadPickle):
            load_pickle(changed(pickle.dumps(value, protocol), changes))

    rounds.run(load, value=_PLAIN, protocol=st.integers(2, 5), changes=_CHANGES)
    more = peak_mb() - before
    return Outcome(
        held=not rounds.failed and more < MORE_MB and rounds.slowest_s < SLOWEST_S,
        measured=f"{rounds.count} pickles, the slowest {rounds.slowest_s:.2f} s, +{more} MB {rounds.failed}",
    )


@attack("F14", "R", "a file of state whose bytes, or whose rows, are changed, is read at a start",
        asked="set aside or contained, a line; the judge lives", limit_s=200, fuzz=True)  # fmt: skip
def states(folder: Path) -> Outcome:
    with own_memory_limited(JUDGE_BYTES) as words:
        judge = Judge(folder / "first")
        judge.start_job()
        judge.kill_rank()
        judge.runner.close()
        path = folder / "first" / "state.sqlite"
        rounds, number = Rounds(), 0
        places = list(_places_in(path))
        sound = path.read_bytes()
        forget_peak()
        before = peak_mb()

        def start(is_file: bool, place: int, changes: list[tuple[float, bytes | str]]) -> None:
            nonlocal number
            number += 1
            _begin_again(judge, path)
            path.write_bytes(changed(sound, changes) if is_file else sound)
            if not is_file:
                _change(path, *places[place % len(places)], changes)
            judge.runner = judge._start()  # noqa: SLF001
            judge.pass_time(1)
            judge.start_job(f"new-{number}")
            judge.kill_rank(f"new-{number}")
            assert judge.told_kinds(f"new-{number}"), f"tells nothing any more; it said {judge.said[:2]}"
            judge.runner.close()
            del judge.outputs[2_000:-2_000]

        rounds.run(start, is_file=st.booleans(), place=st.integers(0, 1 << 16), changes=_CHANGES)
        _begin_again(judge, path)
        judge.runner = judge._start()  # noqa: SLF001
        more, lives = peak_mb() - before, judge.lives()
        return Outcome(
            held=not rounds.failed and lives and more < MORE_MB,
            measured=f"{rounds.count} files, +{more} MB, lives: {lives}; {rounds.failed or words()}",
        )


def _begin_again(judge: Judge, path: Path) -> None:
    for each in path.parent.glob("state.sqlite*"):
        each.unlink()
    del judge.said[:]


#: What of the file is changed by value, by table.
_COLUMNS = {
    "rows": ("operator", "key", "tbl", "row", "value"),
    "timers": ("operator", "key", "name", "due_ns", "set_ns"),
    "position": ("value",),
    "outbox": ("topic", "key", "stamp_ns", "value", "headers", "after"),
}
_KEYS = {"rows": "rowid", "timers": "name", "position": "name", "outbox": "id"}


def _places_in(path: Path) -> Iterator[tuple[str, str, object, object]]:
    """Table, column, key and value. The outbox is given an entry, as if the process had died before it was sent."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO outbox VALUES (1, 'whichrank.incidents', 'k', 1, x'0a00', '', 0)")
        for table, columns in _COLUMNS.items():
            for column in columns:
                for key, value in database.execute(f"SELECT {_KEYS[table]}, {column} FROM {table}"):
                    yield table, column, key, value


def _change(
    path: Path, table: str, column: str, key: object, value: object, changes: Sequence[tuple[float, bytes | str]]
) -> None:
    """Numbers and texts become bytes or other texts."""
    content = changed(value if isinstance(value, bytes) else str(value).encode(), changes)
    new: object = content if isinstance(value, bytes) else content.decode("utf-8", "replace")
    with contextlib.closing(sqlite3.connect(path)) as database, contextlib.suppress(sqlite3.IntegrityError), database:
        database.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE {_KEYS[table]} = ?", (new, key))
