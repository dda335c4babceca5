"""The process beside a rank that makes its saves whole: checksum and manifest, the partner's copy, the upload.

    python -m whichrank.checkpoint.writer_process DESCRIPTOR

It lives as long as its rank: when the rank's end of the socket closes, it finishes the slot that it is at, and ends.
Signals for the job are the rank's to answer. It gives way to training (nice 10).
"""

from __future__ import annotations

import mmap
import os
import pickle
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from .orders import Kept, Ready, SaveOrder, Uploaded, WriterPlace
from .slot_files import SlotFile, SlotManifest, slots_in
from .state_layout import put_together, views_into
from .uploads import Upload, Uploader
from .writers_group import WritersGroup

_NICE = 10


class SlotWriter:
    """Takes one order after the other."""

    def __init__(self, connection: Connection, place: WriterPlace) -> None:
        self._connection, self._place = connection, place
        self._folder = Path(place.folder)
        self._say_lock = threading.Lock()
        self._structure: Any = None
        self._is_cleared = False
        #: Held while a slot is written: the process does not end in between.
        self._at_work = threading.Lock()
        problem = ""
        self._group: WritersGroup | None = None
        try:
            self._group = WritersGroup(place) if place.store is not None else None
        except Exception as error:  # edge: the network, other ranks
            problem = f"writers have not met: {type(error).__name__}: {error}"
        self._uploads: queue.Queue[Upload] = queue.Queue()
        self._is_uploading = False
        if place.persistent is not None and not problem:
            group = self._group.uploads if self._group is not None else None
            self._uploader = Uploader(place.persistent, group, place.keep_persistent, is_first_rank=place.rank == 0)
            threading.Thread(target=self._carry, daemon=True).start()
        self._say(Ready(problem=problem))

    def _say(self, word: Kept | Uploaded | Ready) -> None:
        with self._say_lock:
            self._connection.send_bytes(pickle.dumps(word))

    def take(self, order: SaveOrder) -> None:
        """Makes one save whole, and tells. Raises only what ends the process: the rank is gone."""
        with self._at_work:
            manifest, problem = self._commit(order)
        is_whole = is_copied = will_upload = False
        try:
            is_whole, is_copied, will_upload = self._agree(order, manifest)
        except (RuntimeError, OSError, ValueError) as error:
            problem = problem or f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
            if self._group is not None:
                self._group.is_broken = True
        kept = Kept(
            name=order.name, slot=order.slot, is_whole=is_whole, is_copied=is_copied,
            will_upload=will_upload, problem=problem,
        )  # fmt: skip
        self._say(kept)
        if will_upload:
            self._is_uploading = True
            self._uploads.put(Upload(name=order.name, slot=order.slot, state=self._state(order)))
        if is_whole and not self._is_cleared:
            self._is_cleared = True
            self._clear_up()

    def finish(self, orders: queue.Queue[SaveOrder]) -> None:
        """The rank is gone: what lies in slots by now is made whole, and nobody is asked any more."""
        with self._at_work:
            while not orders.empty():
                self._commit(orders.get_nowait())

    def _commit(self, order: SaveOrder) -> tuple[SlotManifest | None, str]:
        """The slot's manifest once it lies there; None, and why."""
        if order.structure:
            self._structure = pickle.loads(order.structure)
        if order.slot < 0 or order.layout is None:
            return None, ""
        slot = SlotFile(self._folder, self._place.rank, order.slot)
        size = order.layout.size_bytes
        try:
            slot.put_values(size, order.values)
            manifest = SlotManifest(
                rank=self._place.rank, world=self._place.world, attempt_ns=order.name.attempt_ns, step=order.name.step,
                fingerprint=order.layout.fingerprint, tensor_bytes=size, value_bytes=len(order.values),
                crc=slot.checksum(size + len(order.values)),
            )  # fmt: skip
            slot.commit(manifest, with_sync=self._place.with_sync)
        except (OSError, ValueError) as error:
            return None, f"{slot.data}: {error}"
        return manifest, ""

    def _agree(self, order: SaveOrder, manifest: SlotManifest | None) -> tuple[bool, bool, bool]:
        """Whether all ranks have theirs, all partners a copy, and whether all carry it to storage now."""
        wants = order.upload and not self._is_uploading and self._place.persistent is not None
        group = self._group
        if group is None:
            if self._place.world > 1:
                raise RuntimeError("the writers have not met, so nobody knows whether other ranks have theirs")
            return manifest is not None, False, manifest is not None and wants
        if group.is_broken:
            raise RuntimeError("an exchange with other ranks' writers has failed: the next start goes on")
        if order.whole is not None:
            group.became_whole(order.whole)
        said = group.all_say((order.name.step, manifest is not None, wants, order.upload))
        if len({(each[0], each[3]) for each in said}) > 1:
            raise RuntimeError("ranks save other steps than each other: call save() on all ranks after the same steps")
        is_whole = all(each[1] for each in said)
        is_copied = False
        if is_whole and manifest is not None and self._place.next_rank >= 0:
            slot = SlotFile(self._folder, self._place.rank, order.slot)
            try:
                has_copy = group.copy_to_partner(manifest, slot)
            except OSError as error:  # no room: the others go on
                print(f"whichrank: near checkpoints: {error}", file=sys.stderr)
                has_copy = False
            is_copied = all(each[0] for each in group.all_say((has_copy,)))
            if is_copied:
                group.became_whole(manifest.name)
        return is_whole, is_copied, is_whole and all(each[2] for each in said)

    def _state(self, order: SaveOrder) -> dict[str, Any]:
        """The state of a slot, on the slot's own memory."""
        assert order.layout is not None
        with open(SlotFile(self._folder, self._place.rank, order.slot).data, "r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        tensors = views_into(torch.frombuffer(memory, dtype=torch.uint8), order.layout.extents)
        state: dict[str, Any] = put_together(self._structure, tensors, pickle.loads(order.values))
        return state

    def _carry(self) -> None:
        while True:
            upload = self._uploads.get()
            problem = self._uploader.carry(upload)
            said = Uploaded(name=upload.name, slot=upload.slot, problem=problem)
            del upload
            self._is_uploading = False
            try:
                self._say(said)
            except OSError:
                return

    def _clear_up(self) -> None:
        """Parts of ranks that were on this node in an earlier attempt: they fill its memory."""
        if self._place.keep_ranks is not None:
            for slot in slots_in(self._folder):
                if slot.rank not in self._place.keep_ranks:
                    slot.remove()


def main(words: list[str]) -> None:
    """The process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)
    torch.set_num_threads(1)
    connection = Connection(int(words[0]))
    orders: queue.Queue[Any] = queue.Queue()
    writer: list[SlotWriter] = []

    def listen() -> None:
        """Ends the process with its rank, whatever else it waits for: other writers may be gone as well."""
        try:
            while True:
                orders.put(pickle.loads(connection.recv_bytes()))
        except (OSError, EOFError):
            if writer:
                writer[0].finish(orders)
            os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    writer.append(SlotWriter(connection, orders.get()))
    try:
        while True:
            writer[0].take(orders.get())
    except (OSError, EOFError):
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
