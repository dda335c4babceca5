"""Logs as machines keep them: rotated ones are packed. Known by their first bytes, and unpacked while they are read.

Memory stays bounded, whatever a file unpacks to. What is no text at all is refused: it would be read as a log in which
nothing happened.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, BinaryIO, cast

from .input_file import Unreadable

#: Packed again and again, a small file would be unpacked for ever.
MOST_LAYERS = 3
SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
#: Read at once: what four bytes of it unpack to may be 128 KiB.
ZSTD_BYTES = 512
#: Looked at before a log is read.
SAMPLE_BYTES = 1 << 16
#: Of a sample, what no text has, in parts of it. Bytes of other encodings do not count.
MOST_JUNK = 0.05
#: What a log that was cut while it was written, or a machine without power, leaves: no junk.
_HOLE = re.compile(rb"\0{64,}|\A\0+|\0+\Z")
#: Without what terminals and progress bars use: \a \b \t \n \v \f \r \x1b.
_JUNK = bytes([*range(7), *range(14, 27), *range(28, 32), 127])


@contextmanager
def opened(name: str, path: Path) -> Iterator[BinaryIO]:
    """A context with the file's bytes, unpacked. name: what errors call it.

    Raises OSError, and Unreadable for what cannot be unpacked, then or while it is read.
    """
    with path.open("rb", buffering=0) as file:
        state = os.fstat(file.fileno())
        if stat.S_ISREG(state.st_mode):  # a job that goes on may write faster than this reads
            yield unpacked(name, io.BufferedReader(_UpTo(file, state.st_size), SAMPLE_BYTES))
        else:
            yield unpacked(name, _buffered(file))


@contextmanager
def opened_text(name: str, path: Path) -> Iterator[io.TextIOWrapper]:
    """A context with the file as text, unpacked. name: what errors call it.

    Raises OSError, and Unreadable for what is no text or cannot be unpacked.
    """
    with opened(name, path) as file:
        yield io.TextIOWrapper(text_only(name, file), encoding="utf-8", errors="replace")


def unpacked(name: str, file: BinaryIO) -> io.BufferedReader:
    """The file's bytes, unpacked as often as they are packed. name: what errors call it. Raises Unreadable."""
    buffered = _buffered(file)
    for _ in range(MOST_LAYERS):
        inner = _unpacking(name, buffered)
        if inner is None:
            return buffered
        buffered = io.BufferedReader(_Named(name, inner), SAMPLE_BYTES)
    return buffered


def text_only(name: str, file: BinaryIO) -> io.BufferedReader:
    """The file, if it begins like text; as UTF-8 where its first bytes say that it is UTF-16. Raises Unreadable."""
    buffered = _buffered(file)
    if buffered.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        buffered = io.BufferedReader(_FromUtf16(buffered), SAMPLE_BYTES)
    sample = _HOLE.sub(b"", buffered.peek(SAMPLE_BYTES)[:SAMPLE_BYTES])
    junk = len(sample) - len(sample.translate(None, _JUNK))
    if junk > MOST_JUNK * len(sample):
        raise Unreadable(f"{name}: this is no text; name logs, as they are or packed ({', '.join(SUFFIXES)})")
    return buffered


def _buffered(file: BinaryIO) -> io.BufferedReader:
    if isinstance(file, io.BufferedReader):
        return file
    return io.BufferedReader(cast(io.RawIOBase, file), SAMPLE_BYTES)


def without_suffix(name: str) -> str:
    """The name without the suffix of a packed file: ``rank_3.log.gz`` -> ``rank_3.log``."""
    return name[: -len(PurePath(name).suffix)] if PurePath(name).suffix.lower() in SUFFIXES else name


def _unpacking(name: str, file: io.BufferedReader) -> Any:
    """A stream with ``read``; None: it is not packed."""
    begins = file.peek(6)[:6]
    if begins.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if begins.startswith(b"BZh"):
        return bz2.BZ2File(file)
    if begins == b"\xfd7zXZ\x00":
        return lzma.LZMAFile(file)
    if begins.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstandard(name, file)
    return None


def _zstandard(name: str, file: io.BufferedReader) -> Any:
    """Python has it from 3.14 on; before, Kafka's client brings a package."""
    try:
        from compression import zstd

        return zstd.ZstdFile(file)
    except ImportError:
        pass
    try:
        import zstandard

        return _Frames(file, zstandard.ZstdDecompressor().decompressobj)
    except ImportError:
        raise Unreadable(f"{name}: packed by zstd, which this Python cannot read; unpack it: zstd -d {name}") from None


class _Frames:
    """zstd's by the package, whose own reader takes a file that was cut off for one that has ended."""

    def __init__(self, file: io.BufferedReader, begin: Callable[[], Any]) -> None:
        self._file, self._begin = file, begin
        self._frame: Any = None
        self._ready, self._rest = b"", b""

    def read(self, size: int) -> bytes:
        while not self._ready:
            data, self._rest = self._rest or self._file.read(ZSTD_BYTES), b""
            if not data:
                if self._frame is not None:
                    raise EOFError("it ends within a frame")
                return b""
            self._frame = self._frame or self._begin()
            self._ready = self._frame.decompress(data)
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        taken, self._ready = self._ready[:size], self._ready[size:]
        return taken


class _FromUtf16(io.RawIOBase):
    """As Windows and PowerShell write text: ``>`` makes UTF-16 of what a program has said. What is none is replaced."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-16")("replace").decode
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any, /) -> int:
        while not self._ready:
            data = self._file.read(SAMPLE_BYTES)
            self._ready = self._decode(data, not data).encode("utf-8", "replace")
            if not data:
                break
        taken, self._ready = self._ready[: len(into)], self._ready[len(into) :]
        into[: len(taken)] = taken
        return len(taken)


class _UpTo(io.RawIOBase):
    """A file as long as it was when it was opened."""

    def __init__(self, file: io.FileIO, size: int) -> None:
        self._file, self._left = file, size

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any, /) -> int:
        count = self._file.readinto(memoryview(into)[: self._left]) or 0
        self._left -= count
        return count


class _Named(io.RawIOBase):
    """What is being unpacked; where it is damaged, the file is named."""

    def __init__(self, name: str, inner: Any) -> None:
        self._name, self._inner = name, inner

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any, /) -> int:
        try:
            data: bytes = self._inner.read(len(into))
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            raise Unreadable(self._words(error)) from error
        except Exception as error:  # edge: the package for zstd has an error of its own
            if type(error).__name__ != "ZstdError":
                raise
            raise Unreadable(self._words(error)) from error
        into[: len(data)] = data
        return len(data)

    def _words(self, error: Exception) -> str:
        why = " ".join(str(error).split()) or type(error).__name__
        return f"{self._name}: it cannot be unpacked to its end ({why}); was it copied whole?"
