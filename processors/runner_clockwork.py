"""How a caught-up runner keeps time: ticks on the bus, and that the input is silent. In the runner's thread."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..telemetry.otlp import encode_payloads
from ..telemetry.records import Event, Identity
from ..telemetry.vocabulary import EventName
from ..transport.bus import TOPIC_CLOCK, Bus
from .runner_delivery import Delivery
from .runner_state import RunnerState

#: A caught-up runner with nothing to process logs a tick this often.
BEAT_NS = 1_000_000_000
#: After so many beats without any input, time stands still.
SILENT_BEATS = 5
#: A mark that was appended and has not come back after so long is given up.
MARK_TIMEOUT_S = 5.0


class Clockwork:
    """Keeps time on the bus for one runner. report: takes one line for what a person should know."""

    def __init__(self, bus: Bus, state: RunnerState, delivery: Delivery, report: Callable[[str], None]) -> None:
        self._bus, self._state, self._delivery, self._report = bus, state, delivery, report
        self._mark_position: int | None = None  # of the last mark, until it is read
        self._marked_at = 0.0

    def keep_time(self) -> bool:
        """Appends a tick, or that the input is silent, if it is time to. True if something was appended."""
        position = self._state.position
        if not position.now_ns or position.silent or not self._delivery.has_caught_up() or self._awaits_mark():
            return False
        now_ns = self._bus.now_ns()
        due_ns = self._state.timers.next_due_ns()
        if position.beats >= SILENT_BEATS and now_ns - position.input_ns >= SILENT_BEATS * BEAT_NS:
            if now_ns - position.now_ns < BEAT_NS:
                return False
            self.append_mark(EventName.INPUT_SILENT)
            return True
        if now_ns - position.now_ns >= BEAT_NS or (due_ns is not None and due_ns <= now_ns):
            self.append_mark(EventName.TICK)
            return True
        return False

    def append_mark(self, name: EventName) -> None:
        """Appends a tick (TICK), or that the input is silent (INPUT_SILENT), to the bus.

        Raises OSError where the bus is not there; a disk that refuses is only reported.
        """
        position = self._state.position
        silent_s = (self._bus.now_ns() - position.input_ns) / 1e9
        event = Event(
            name=name,
            identity=Identity(cluster=position.cluster) if name is EventName.INPUT_SILENT else Identity(),
            time_ns=self._bus.now_ns(),
            attributes={"silent_s": round(silent_s, 3)} if name is EventName.INPUT_SILENT else {},
        )
        self._marked_at = time.monotonic()
        try:
            self._mark_position = self._bus.append(TOPIC_CLOCK, "", encode_payloads([event]))
        except OSError as error:
            if not self._bus.reads_outputs:  # it is not there: time stands still
                raise
            self._report(str(error))  # the disk refused; the bus has it in memory

    def _awaits_mark(self) -> bool:
        """The last mark is still on its way back."""
        if self._mark_position is None or self._state.position.after >= self._mark_position:
            return False
        return time.monotonic() - self._marked_at < MARK_TIMEOUT_S
