"""Finds and reads the cuts that stand in ``whichrank.clock``: up to which offset of each partition all was read."""

from __future__ import annotations

from collections.abc import Callable

from ..telemetry.topics import TOPIC_CLOCK
from .cuts import unpack_ends
from .kafka_client import Client, Fetched, KafkaTrouble, Partition
from .kafka_writer import APPEND_TIMEOUT_S

#: Header of a cut in the clock topic: ends per partition, as JSON.
HEADER_CUT = "whichrank.cut"
#: How much of the clock is read at first to find a cut in it.
SEARCH_RECORDS = 64


class ClockCuts:
    """clock: the one partition that holds the cuts. unreadable: cuts that could not be read, and were left out."""

    def __init__(
        self, client: Client, clock: Partition, report: Callable[[str], None], monotonic_s: Callable[[], float]
    ) -> None:
        self._client, self._clock = client, clock
        self._report = report
        self._monotonic_s = monotonic_s
        self.unreadable = 0

    def ends_at(self, position: int, first_kept: int) -> dict[Partition, int]:
        """Ends by partition of the last cut at or before a position, read back from the clock; {} if none is kept.

        Raises KafkaTrouble.
        """
        begin, step = position + 1, SEARCH_RECORDS
        while begin > first_kept:
            until, begin = begin - 1, max(first_kept, begin - step)
            if ends := self.last(begin, until):
                return ends
            step *= 16
        return {}

    def last(self, begin: int, until: int) -> dict[Partition, int]:
        """Ends by partition of the last cut between two offsets of the clock, both included; {} if there is none.

        Raises KafkaTrouble.
        """
        reader = self._client.consumer(committed_only=True)
        ends: dict[Partition, int] = {}
        deadline = self._monotonic_s() + APPEND_TIMEOUT_S
        try:
            reader.assign({self._clock: begin})
            while reader.next_offset(self._clock) <= until:
                for record in reader.poll(0.2):
                    if record.offset <= until and HEADER_CUT in record.headers:
                        ends = self.read(record) or ends
                if self._monotonic_s() > deadline:
                    raise KafkaTrouble(f"{TOPIC_CLOCK}: cannot be read up to {until}")
        finally:
            reader.close()
        return ends

    def read(self, record: Fetched) -> dict[Partition, int]:
        """Ends by partition of the cut in a record.

        {} where it cannot be read: that is counted, and the first one reported.
        """
        try:
            return unpack_ends(record.headers[HEADER_CUT])
        except ValueError as error:
            self.unreadable += 1
            if self.unreadable == 1:
                self._report(f"{TOPIC_CLOCK}, offset {record.offset}: {error}; the cut is left out")
            return {}
