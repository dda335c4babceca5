from collections.abc import Sequence
from typing import TypeVar

Name = TypeVar("Name")

def unpack(content: bytes, layout: bytes, unknown: bytes, limit: int, /) -> bytes | None: ...
def unpack_flush(
    body: bytes,
    version: int,
    most_uids: int,
    known: Sequence[tuple[Name, bytes, bytes]],
    most_rows: int,
    more_rows: int,
    /,
) -> tuple[int, bytes, list[tuple[Name, bytes]], int] | None: ...
