"""What the judge knows of its followers: who each one is, which of its messages have come, how its clock runs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .peer_frames import NONCE_BYTES, BrokenPeer, unpack_proof

MAX_NAME = 128
#: The two clocks are compared at every ping; a better or a later estimate that differs by this much is told.
CLOCK_NEWS_NS = 20_000_000
#: No ping is delayed for so long: that node was suspended, and its clock stood still.
SUSPENDED_NS = 2_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a follower says of itself. instance: the same over all its connections; mono_ns: its clock when it spoke."""

    job: str
    node: str
    instance: str
    nonce: bytes
    mono_ns: int


def read_hello(secret: bytes, key: str, nonce: bytes, body: bytes) -> Hello:
    """What a follower says of itself, after its proof was checked. Raises BrokenPeer with the reason for people.

    key: of our job; nonce: ours, over which the proof is.
    """
    fields = unpack_proof(secret, "follower", nonce, body)
    if fields.get("key") != key:
        raise BrokenPeer("another job")
    try:
        hello = Hello(
            job=str(fields.get("job")),
            node=str(fields["node"])[:MAX_NAME],
            instance=str(fields["instance"])[:MAX_NAME],
            nonce=bytes.fromhex(fields["nonce"]),
            mono_ns=int(fields["mono_ns"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        raise BrokenPeer("an incomplete hello") from None
    if not hello.instance or not hello.node or len(hello.nonce) != NONCE_BYTES:
        raise BrokenPeer("an incomplete hello")
    if not all(text.isprintable() for text in (hello.job, hello.node, hello.instance)):
        raise BrokenPeer("a name that cannot be printed")
    return hello


@dataclass(slots=True)
class Follower:
    """Over all its connections. missing: messages that it had to drop before it could send them."""

    node: str
    received: int = 0
    missing: int = 0

    def takes(self, number: int) -> bool:
        """Whether the message of this number is new, which is then noted, and gaps before it as missing.

        It is not new if it came before the connection was lost.
        """
        if number <= self.received:
            return False
        self.missing += number - self.received - 1
        self.received = number
        return True


class Followers:
    """All that have ever come, by instance. node: the judge's own name, which no follower may have."""

    def __init__(self, node: str) -> None:
        self._names = {node}
        self._known: dict[str, Follower] = {}

    def meet(self, hello: Hello) -> Follower:
        """The follower that has come before under this instance, or a new one, whose name is made unique."""
        found = self._known.get(hello.instance)
        if found is None:
            found = self._known[hello.instance] = Follower(node=self._free_name(hello.node))
        return found

    def __getitem__(self, instance: str) -> Follower:
        return self._known[instance]

    @property
    def missing(self) -> int:
        """How many messages of all followers were numbered and have not come."""
        return sum(follower.missing for follower in list(self._known.values()))

    def _free_name(self, node: str) -> str:
        """Its own name, with a number where another instance has it: cloned machines, two on one machine."""
        name, number = node, 1
        while name in self._names:
            number += 1
            name = f"{node}~{number}"
        self._names.add(name)
        return name


@dataclass(slots=True)
class FollowerClock:
    """From a follower's monotonic clock to this machine's wall clock. told_ns: the offset that was told last."""

    offset_ns: int = 0
    told_ns: int = 0

    def start(self, offset_ns: int) -> None:
        """Takes the offset of a connection's first ping: nothing is known that it could be compared with."""
        self.offset_ns = self.told_ns = offset_ns

    def compare(self, offset_ns: int) -> bool:
        """Takes in the offset that a ping shows; True if it is news, which then counts as told.

        Delays only ever make it larger: smaller is better, larger counts if it stays (a slow rise follows it).
        """
        self.offset_ns = min(offset_ns, self.offset_ns + CLOCK_NEWS_NS // 64)
        if offset_ns - self.offset_ns > SUSPENDED_NS:
            self.offset_ns = offset_ns
        if abs(self.offset_ns - self.told_ns) <= CLOCK_NEWS_NS:
            return False
        self.told_ns = self.offset_ns
        return True
