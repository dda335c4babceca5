"""What writer processes of all ranks say to each other: who has its part, and each rank's part to its partner.

A group of gloo of their own, so that training's groups are never held up. Once an exchange has failed (a writer is
gone) the group is not used again: which message comes next is not known any more.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .orders import WriterPlace
from .slot_choice import SlotStates
from .slot_files import PARTNER_SLOTS, PIECE_BYTES, CheckpointName, SlotFile, SlotManifest, decode_manifest

#: A manifest in a message: its length comes first.
_LONGEST_MANIFEST = 1024


class WritersGroup:
    """Of this writer. Raises RuntimeError where the others are not met in time."""

    def __init__(self, place: WriterPlace) -> None:
        assert place.store is not None
        self._place = place
        wait = timedelta(seconds=place.wait_s)
        host, port = place.store
        make_store: Any = dist.TCPStore  # type: ignore[attr-defined]
        store = make_store(host, port, place.world, is_master=place.rank == 0, timeout=wait, wait_for_workers=False)
        dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.world, timeout=wait)
        #: Uploads have one of their own: they take long, and saves go on.
        self.uploads: Any = dist.new_group(backend="gloo", timeout=wait)
        self.is_broken = False
        self._partner = SlotStates(PARTNER_SLOTS)
        if place.previous_rank >= 0:
            for slot in range(PARTNER_SLOTS):
                found = SlotFile(Path(place.folder), place.previous_rank, slot).manifest()
                if found is not None:
                    self._partner.held[slot] = found.name

    def all_say(self, words: Sequence[int]) -> list[list[int]]:
        """What each rank says, by rank: as many whole numbers each. Raises RuntimeError."""
        mine = torch.tensor(list(words), dtype=torch.int64)
        found = [torch.empty_like(mine) for _ in range(self._place.world)]
        dist.all_gather(found, mine)
        return [each.tolist() for each in found]

    def copy_to_partner(self, manifest: SlotManifest, slot: SlotFile) -> bool:
        """Sends this rank's part to its partner while it takes another's. All ranks at once.

        Returns whether what came is whole and kept. Raises RuntimeError; OSError where there is no room for it.
        """
        place = self._place
        raw = manifest.encode()
        head = torch.zeros(_LONGEST_MANIFEST, dtype=torch.uint8)
        head[: len(raw)] = as_tensor(raw)
        theirs = torch.empty_like(head)
        _exchange(head, place.next_rank, theirs, place.previous_rank)
        told = decode_manifest(bytes(theirs.tolist()).rstrip(b"\0"))
        if told.rank != place.previous_rank or told.name != manifest.name:
            raise RuntimeError(f"rank {told.rank}'s part of step {told.step} came for another")
        chosen = None if place.is_previous_here else self._partner.choose()
        into = None if chosen is None else SlotFile(Path(place.folder), told.rank, chosen)
        memory, problem = _memory(into, told)
        theirs_whole = None if memory is None else torch.frombuffer(memory, dtype=torch.uint8)
        size, their_size = _size(manifest), _size(told)
        crc = 0
        with open(slot.data, "rb") as file:
            for begin in range(0, max(size, their_size), PIECE_BYTES):
                mine = as_tensor(file.read(max(0, min(PIECE_BYTES, size - begin))))
                end = min(begin + PIECE_BYTES, their_size)
                room = torch.empty(max(0, end - begin), dtype=torch.uint8)
                if theirs_whole is not None and end > begin:
                    room = theirs_whole[begin:end]
                _exchange(mine, place.next_rank, room, place.previous_rank)
                if memory is not None and end > begin:
                    crc = zlib.crc32(memoryview(memory)[begin:end], crc)
        if place.is_previous_here:
            return True
        if memory is None or into is None or chosen is None:
            raise OSError(problem)
        if crc != told.crc:
            return False
        into.commit(told, with_sync=place.with_sync)
        self._partner.held[chosen] = told.name
        return True

    def became_whole(self, name: CheckpointName) -> None:
        """The newest that all ranks have, and their partners: it is kept, and the one before may be written over."""
        self._partner.became_whole(name, is_copied=True)


def as_tensor(raw: bytes) -> torch.Tensor:
    """The same bytes, uint8."""
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)


def _size(manifest: SlotManifest) -> int:
    return manifest.tensor_bytes + manifest.value_bytes


def _memory(into: SlotFile | None, told: SlotManifest) -> tuple[mmap.mmap | None, str]:
    """Room for a partner's part; None, and why: what comes is then taken from the wire all the same."""
    if into is None:
        return None, "no slot is free for the partner's part"
    try:
        memory = into.prepare(_size(told))
        os.truncate(into.data, max(_size(told), 1))
        return memory, ""
    except OSError as error:
        return None, f"{into.data}: {error.strerror or error}"


def _exchange(mine: torch.Tensor, to_rank: int, theirs: torch.Tensor, from_rank: int) -> None:
    """Both at once, so that a ring of ranks does not wait for itself. Raises RuntimeError."""
    work = []
    if len(theirs):
        work.append(dist.irecv(theirs, from_rank))
    if len(mine):
        work.append(dist.isend(mine, to_rank))
    for each in work:
        if each is not None:
            each.wait()
