"""What becomes of a checkpoint: states of a save, who saved, where it lies, and how a ring's SAVE event holds them.

A save is begun; staged where the state has been copied and training goes on; durable where the whole of this rank's
part is written; or failed. Closed sets: append, never renumber. Standard library only: the training process imports it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class SaveState(IntEnum):
    """How far a save is."""

    BEGUN = 1
    STAGED = 2
    DURABLE = 3
    FAILED = 4
    #: A file that the save consists of, among others: its place, by which it is known when it is read.
    PART = 5
    #: Nothing failed here, but another rank has none of this step: it is no checkpoint.
    LEFT_OUT = 6


class SaveWay(IntEnum):
    """Whose save it is: the outermost call."""

    OTHER = 0
    #: ``whichrank.phase("checkpoint")``.
    BY_HAND = 1
    TORCH_SAVE = 2
    DCP_SAVE = 3
    DCP_ASYNC_SAVE = 4
    SAFETENSORS = 5
    LIGHTNING = 6
    FABRIC = 7
    HUGGING_FACE = 8
    ACCELERATE = 9
    DEEPSPEED = 10
    MEGATRON = 11
    NVIDIA_RESILIENCY = 12
    TORCHTITAN = 13
    #: ``whichrank.checkpoint``: the tiers near the job.
    WHICHRANK = 14
    #: The function of ``whichrank.on_checkpoint``.
    EMERGENCY = 15
    #: ``whichrank.checkpoint``: what is carried on to the storage that stays.
    WHICHRANK_STORAGE = 16


class Tier(IntEnum):
    """What a checkpoint lies on."""

    UNKNOWN = 0
    #: A file system in memory: gone with the node.
    MEMORY = 1
    #: A disk of the node: gone with the node, as a rule.
    DISK = 2
    #: A file system of servers.
    NETWORK = 3
    OBJECT_STORE = 4


class SaveHead(NamedTuple):
    """The 16 bits of a SAVE event's ``group`` field."""

    state: int
    tier: int
    way: int


def pack_save_head(state: SaveState, tier: Tier, way: SaveWay) -> int:
    """State in bits 0-3, tier in 4-7, way in 8-15."""
    return int(state) | int(tier) << 4 | int(way) << 8


def unpack_save_head(group: int) -> SaveHead:
    """The opposite of ``pack_save_head``; numbers that this release does not know stay as they are."""
    return SaveHead(group & 0xF, group >> 4 & 0xF, group >> 8 & 0xFF)


#: A SAVE event's ``extra``: steps in the low half, KiB in the high one.
_HALF = (1 << 32) - 1


def pack_save_extra(step: int, size_bytes: int) -> int:
    """step: steps of the attempt that the state holds. size_bytes: of this rank's part; 0: not known."""
    return min(max(step, 0), _HALF) | min((size_bytes + 1023) // 1024, _HALF) << 32


def unpack_save_extra(extra: int) -> tuple[int, int]:
    """Steps, and bytes to the next KiB."""
    return extra & _HALF, (extra >> 32) * 1024


def word(member: IntEnum) -> str:
    """As people and events have it."""
    return member.name.lower()
