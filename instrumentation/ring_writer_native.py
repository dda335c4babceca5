"""The ring writer whose hot half is the C recorder. Importing this raises ImportError where it was not built.

Same methods and bytes as ring_writer.RingWriter. The C object maps the file itself; the rare writes inherited from
RingRecords go through a view of that mapping, which stays valid after ``close`` and in a forked child (there it leads
to private memory), so nothing needs to ask whether the ring is still there.
"""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Any

from ..telemetry import ring_layout as layout
from ..telemetry.vocabulary import Level
from . import _recorder
from .forked_writers import register_for_fork
from .ring_creation import IdentityValue, PreparedRing, geometry_for, prepare_ring
from .ring_records import RingRecords


class NativeRingWriter(_recorder.Recorder, RingRecords):
    """Writes one rank's ring. Create with :meth:`create`."""

    def __new__(cls, prepared: PreparedRing) -> NativeRingWriter:
        """Map a prepared ring file. Raises OSError or ValueError; the caller discards the file then."""
        geometry = prepared.geometry
        writer: NativeRingWriter = super().__new__(
            cls,
            fd=prepared.fd,
            file_bytes=geometry.file_bytes,
            progress_offset=geometry.progress_offset,
            group_rows=geometry.group_rows,
            events_offset=geometry.events_offset,
            event_slots=geometry.event_slots,
        )
        return writer

    def __init__(self, prepared: PreparedRing) -> None:
        self._start_records(prepared.path, prepared.geometry)
        self._bytes = self._view()
        # A view does not keep the mapping: the recorder is kept by whoever keeps the view, this object.
        self._bytes = self._bytes.cast("B")
        self._words = self._bytes.cast("Q")
        self._words[self._row_word(layout.RANK_ROW) + (layout.R_LEVEL >> 3)] = int(Level.OFF)
        register_for_fork(weakref.ref(self))

    @classmethod
    def create(
        cls,
        directory: Path,
        *,
        rank: int,
        local_rank: int,
        world_size: int,
        identity: dict[str, IdentityValue],
        slots: int | None = None,
        group_rows: int | None = None,
    ) -> NativeRingWriter:
        """Create, map and publish a ring file in ``directory``. Raises OSError: then there is no ring at all."""
        prepared = prepare_ring(
            directory,
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
            identity=identity,
            geometry=geometry_for(world_size, event_slots=slots, group_rows=group_rows),
            writer_kind=layout.WRITER_C,
        )
        try:
            writer = cls(prepared)
        except BaseException:
            prepared.discard()
            raise
        try:
            prepared.publish()
        except BaseException:
            prepared.remove_temporary()
            writer.close()
            raise
        return writer

    def close(self) -> None:
        """Release the lock and the mapping; the file stays for the agent. Later calls write nowhere."""
        self._forget()

    def forget_in_child(self) -> None:
        """Lets go of the ring in a forked child; a lock held by another thread must not stay held.

        The C recorder has done its part at the fork itself.
        """
        self._records_lock = threading.Lock()
        self._forget()

    def __reduce__(self) -> Any:
        raise TypeError("a ring writer belongs to its process")
