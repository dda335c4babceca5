"""What a judge's hub tells of its followers: who came, whose clock was learned, who is lost, and what they sent."""

from __future__ import annotations

from dataclasses import dataclass

from .peer_frames import (
    PeerMessage,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerJoined:
    """offset_ns: to be added to the follower's monotonic clock to get this machine's wall clock."""

    node: str
    offset_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerClock:
    node: str
    offset_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLost:
    """why: "left" (its command has ended), "closed" (the connection, without a word) or "silent"."""

    node: str
    why: str
    silent_ns: int


HubNews = PeerJoined | PeerClock | PeerLost | PeerMessage
