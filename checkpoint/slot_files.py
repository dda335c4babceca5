"""A place in a node's memory or on its disk for one rank's part of one checkpoint: a file of bytes and a manifest.

The manifest is removed before the bytes are touched and written, whole, after they are: whatever is killed in between,
a slot with a manifest is a whole one, and its checksum says so. The folder is its user's alone.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import stat
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

#: Own slots: the newest whole one, one that is written, and one that is carried to the storage that stays.
OWN_SLOTS = 3
#: Of a partner: the newest whole one, and one that arrives.
PARTNER_SLOTS = 2
_VERSION = 1
#: Checksums and transfers go by pieces of so many bytes.
PIECE_BYTES = 16 << 20
_NAME = re.compile(r"rank-(\d+)\.slot-(\d+)\.json")


@dataclass(frozen=True, slots=True, order=True)
class CheckpointName:
    """Which checkpoint: attempts are in order of their begin (Unix ns, by rank 0), steps within one.

    A later attempt's is the newer one, also of an earlier step: whoever went back to an older state meant it.
    """

    attempt_ns: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotManifest:
    """What lies in a slot. tensor_bytes, value_bytes: one after the other in the file; crc: CRC-32 of both."""

    rank: int
    world: int
    attempt_ns: int
    step: int
    fingerprint: str
    tensor_bytes: int
    value_bytes: int
    crc: int
    version: int = _VERSION

    @property
    def name(self) -> CheckpointName:
        """Which checkpoint it is a part of."""
        return CheckpointName(self.attempt_ns, self.step)

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self)).encode()


def decode_manifest(raw: bytes) -> SlotManifest:
    """The opposite of ``SlotManifest.encode``. Raises ValueError for what is none, or of another version."""
    try:
        said = json.loads(raw)
        if said.get("version") != _VERSION:
            raise ValueError("another version's")
        return SlotManifest(**said)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"no manifest: {error}") from error


def open_folder(local: str | os.PathLike[str], name: str) -> Path:
    """The folder of this run's slots, made where it is not there.

    Raises OSError; PermissionError where it is another user's or open to others: what is read from it is trusted;
    ValueError for a name that leads elsewhere.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError(f"name={name!r}: letters, digits, dots, dashes and underscores, 100 at most")
    folder = Path(local) / f"whichrank-near-{os.geteuid()}-{name}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o077:
        raise PermissionError(f"{folder}: has to be a folder of this user's alone (mode 0700)")
    return folder


class SlotFile:
    """One slot of one rank in a folder. Not for several writers at a time."""

    def __init__(self, folder: Path, rank: int, slot: int) -> None:
        self.rank, self.slot = rank, slot
        self.data = folder / f"rank-{rank:06d}.slot-{slot}.data"
        self._manifest = folder / f"rank-{rank:06d}.slot-{slot}.json"

    def prepare(self, tensor_bytes: int) -> mmap.mmap:
        """Memory for so many bytes, shared with the file; what lay there counts no more. Raises OSError (no space)."""
        self.forget()
        fd = os.open(self.data, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            size = max(tensor_bytes, mmap.PAGESIZE)
            # All of it now: a page that cannot be had while it is written to is a signal, not an error.
            os.posix_fallocate(fd, 0, size)
            os.ftruncate(fd, size)
            return mmap.mmap(fd, size)
        finally:
            os.close(fd)

    def forget(self) -> None:
        """From now on nothing whole lies here."""
        self._manifest.unlink(missing_ok=True)

    def put_values(self, tensor_bytes: int, values: bytes) -> None:
        """Writes what is no tensor behind the tensors. Raises OSError."""
        with open(self.data, "r+b") as file:
            file.truncate(max(tensor_bytes, mmap.PAGESIZE))
            file.seek(tensor_bytes)
            file.write(values)
            file.truncate(tensor_bytes + len(values))

    def commit(self, manifest: SlotManifest, *, with_sync: bool) -> None:
        """From now on it is whole. with_sync: the bytes first reach the disk. Raises OSError."""
        if with_sync:
            fd = os.open(self.data, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        new = self._manifest.with_suffix(f".{os.getpid()}.new")
        with open(new, "wb") as file:
            file.write(manifest.encode())
            file.flush()
            if with_sync:
                os.fsync(file.fileno())
        new.replace(self._manifest)

    def manifest(self) -> SlotManifest | None:
        """What lies here by its manifest, and is as large as that says; None: nothing whole."""
        try:
            found = decode_manifest(self._manifest.read_bytes())
            if self.data.stat().st_size < found.tensor_bytes + found.value_bytes or found.rank != self.rank:
                return None
        except (OSError, ValueError):
            return None
        return found

    def pieces(self, begin: int, end: int) -> Iterator[bytes]:
        """The file's bytes from ``begin`` to ``end``. Raises OSError; ValueError where it ends before."""
        with open(self.data, "rb") as file:
            file.seek(begin)
            while begin < end:
                piece = file.read(min(PIECE_BYTES, end - begin))
                if not piece:
                    raise ValueError(f"{self.data}: ends too early")
                begin += len(piece)
                yield piece

    def checksum(self, size_bytes: int) -> int:
        """CRC-32 of its first bytes. Raises OSError, ValueError."""
        crc = 0
        for piece in self.pieces(0, size_bytes):
            crc = zlib.crc32(piece, crc)
        return crc

    def is_intact(self, manifest: SlotManifest) -> bool:
        """Whether the bytes are those that the manifest was made for."""
        try:
            return self.checksum(manifest.tensor_bytes + manifest.value_bytes) == manifest.crc
        except (OSError, ValueError):
            return False

    def remove(self) -> None:
        """The slot's files go."""
        self.forget()
        self.data.unlink(missing_ok=True)


def slots_in(folder: Path) -> list[SlotFile]:
    """Slots with a manifest, of whichever rank."""
    found = [_NAME.fullmatch(name) for name in sorted(os.listdir(folder))]
    return [SlotFile(folder, int(each[1]), int(each[2])) for each in found if each]
