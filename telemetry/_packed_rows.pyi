from collections.abc import Sequence
from typing import TypeVar

Name = TypeVar("Name")

def unpack(content: bytes, layout: bytes, unknown: bytes, limit: int, /) -> bytes | None: ...
def unpack_tables(
    content: bytes, known: Sequence[tuple[Name, bytes, bytes]], most_rows: int, more_rows: int, /
) -> list[tuple[Name, int, bytes]] | None: ...
