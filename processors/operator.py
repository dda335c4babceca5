"""The operator contract (docs/decisions/0005-pure-operators.md): pure keyed functions of records and timers.

An operator does no I/O, reads no clock, starts no thread. Runners (embedded now, Flink later) give it records of one
key in arrival order, persist the rows it changed, and deliver what it emitted after the state is durable.
The result must not depend on where batches end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..telemetry.records import Record


@dataclass(frozen=True, slots=True)
class Timer:
    name: str
    due_ns: int


class Table(Protocol):
    """Named rows of one operator and key; values are bytes. Changed rows are persisted by the runner."""

    def get(self, row: str) -> bytes | None:
        """The value of the row; None where there is no such row."""

    def put(self, row: str, value: bytes) -> None:
        """Sets the row's value; it becomes durable with the next commit."""

    def put_later(self, row: str, make: Callable[[], bytes]) -> None:
        """Sets a row that is dear to write: ``make`` is called for its value when it is needed, at the latest by the
        commit.

        It then gives the row as of the last call of the operator, which has said ``put_later`` in each that changed it.
        """
        ...

    def delete(self, row: str) -> None:
        """Deletes the row; does nothing where there is no such row."""

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """(name, value) of all rows, in ascending order of their names."""
        ...


class Tables(Protocol):
    def table(self, name: str) -> Table:
        """The table of this name, empty if it is new."""


class Context(Protocol):
    """What an operator may touch while it runs, for one key."""

    @property
    def key(self) -> str:
        """The key of the records or timer that are processed now."""

    @property
    def now(self) -> int:
        """Unix ns: the arrival stamp of the last record of the batch, or the timer's due time."""
        ...

    @property
    def state(self) -> Tables:
        """The tables of this operator and key."""

    def emit(self, record: Record) -> None:
        """Emits a record: findings go on to the next operators at once; all else is delivered after the commit."""

    def set_timer(self, name: str, at_ns: int) -> None:
        """Sets or moves the timer ``name`` of this key; it fires once, at ``at_ns`` (Unix, by the bus)."""
        ...

    def clear_timer(self, name: str) -> None:
        """Clears the timer ``name`` of this key; does nothing where it is not set."""

    def owner_of(self, job: str) -> str:
        """Who owns the job of this key, as far as it was said; "" where it was not. By it bounds are shared."""

    def attempt(self, act: Callable[[], None], about: Record | str) -> bool:
        """Calls ``act``. Where it raises, all that it has changed and emitted here is taken back, and False returned.

        Then working copies have to be made anew, and the runner tells of it. about: the record, or the name of what is
        to be done; where that has failed twice, ``act`` is not called for an hour, and False returned. Not nested.
        """
        ...


class Operator(Protocol):
    """One instance serves all keys; everything that outlives a call is in ``ctx.state``, or is rebuilt from it."""

    @property
    def name(self) -> str:
        """The name under which its state is kept: never changed."""

    @property
    def contains_itself(self) -> bool:
        """True: a key is too much to be set aside, and whatever can fail is done by ``ctx.attempt``."""

    @property
    def keys_are_jobs(self) -> bool:
        """Whether its keys are those of jobs, so that their owners are known."""

    @property
    def most_keys(self) -> int:
        """So many keys are kept. Beyond that one is forgotten, of the owner who has most the one that was idle longest;
        where the operator ``contains_itself``, the idlest that it can spare; without one new keys are dropped and
        counted."""

    def forget(self, ctx: Context) -> None:
        """Ends what is open of the key, and deletes all its rows: there are too many keys, and it is idle."""

    def spare(self, ctx: Context) -> bool:
        """Whether nobody would miss what is known of the key: then its working copies are gone, and all its rows are
        deleted next. Only asked where the operator ``contains_itself``.
        """

    def process(self, records: Sequence[Record], ctx: Context) -> None:
        """Processes records of one key, in the order of the bus. Never blocks.

        What it raises sets the key's state aside with the message that did it; all else goes on
        (``runner_containment``).
        """

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Called when a timer of this key is due; ``ctx.now`` is its time or later."""

    def let_go(self, key: str) -> None:
        """Forgets working copies of the key: its rows were taken back, or set aside."""

    def key_of(self, record: Record) -> str | None:
        """The key this operator files the record under; None if it has no use for it.

        Re-keys on content; of a block nothing but its identity may decide.
        """
        ...
