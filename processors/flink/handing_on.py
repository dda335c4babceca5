"""In a shard the operators of later stages are stood for by one that takes what they would get, to hand it on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...telemetry.records import Record
from ..operator import Context, Operator, Timer

_KNOWN = "known"


class HandingOn:
    """Stands for an operator of a later stage: the same name and keys, and its records go to ``send``.

    It keeps which keys it has sent to, as some things are told to all of a cluster's books (``Dispatcher``).
    """

    def __init__(self, operator: Operator, send: Callable[[Record, str], None]) -> None:
        self.name = operator.name
        self.contains_itself = operator.contains_itself
        self.keys_are_jobs = operator.keys_are_jobs
        self.most_keys = operator.most_keys
        self.key_of = operator.key_of
        self._send = send

    def process(self, records: Sequence[Record], ctx: Context) -> None:
        """Sends them on."""
        table = ctx.state.table(_KNOWN)
        if table.get(_KNOWN) is None:
            table.put(_KNOWN, b"1")
        for record in records:
            self._send(record, ctx.key)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """It sets none."""

    def forget(self, ctx: Context) -> None:
        """Only that it has sent there; the stage itself forgets by its own bounds."""
        ctx.state.table(_KNOWN).delete(_KNOWN)

    def spare(self, ctx: Context) -> bool:
        """Nobody misses it: the next record makes it known again."""
        return True

    def let_go(self, key: str) -> None:
        """It holds no working copy."""
