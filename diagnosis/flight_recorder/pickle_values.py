"""Pickles of plain values only: a dump cannot make this process run anything, or fill its memory.

torch writes protocol 2 with containers, strings, numbers, None and booleans; re-saved dumps use protocols up to 5.
Two locks: every opcode of the file is looked at first, and a file that names, builds or calls an object, or whose
counts and memo places go past its own size, is refused unread; then an unpickler that can look up no name reads it.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re

#: Empty lists, dicts and sets, at 56 to 232 bytes each. A ring of 20,000 entries with stacks has 600,000.
MAX_CONTAINERS = 4_000_000
#: Tuples hash their members one inside the other on the C stack, so their number bounds how deep that can go.
#: torch writes one for each entry.
MAX_TUPLES = 30_000
#: Unsigned numbers of 64 bits have nine. Of longer ones any number hashes alike, and a dict of them is quadratic.
MAX_LONG_BYTES = 9
#: Tokens of one match; the pattern below keeps some 100 bytes for each until it ends.
RUN = 4000

#: Opcodes of fixed width that make, keep or fetch plain values. A stored memo place is below 4 million: the unpickler
#: reserves room up to the highest.
_PLAIN_RUN = re.compile(
    rb"(?:[hKq].|[()\]}eusaN0-2\x88\x89\x8f\x90\x94]|M..|J....|j...\x00|r..[\x00-\x3f]\x00|G.{8}|\x80[\x00-\x05]){1,%d}"
    % RUN,
    re.DOTALL,
)
#: Opcode -> bytes of its length field.
_SIZED = {
    ord("X"): 4, 0x8C: 1, 0x8D: 8, ord("T"): 4, ord("U"): 1, ord("B"): 4, ord("C"): 1, 0x8E: 8, 0x8A: 1, 0x8B: 4,
}  # fmt: skip
#: Its length is that of opcodes that follow, each of which is looked at as well.
_FRAME = 0x95
_LONGS = frozenset({0x8A, 0x8B})
#: TUPLE1, TUPLE2, TUPLE3, TUPLE.
_TUPLES = frozenset({0x85, 0x86, 0x87, ord("t")})
_STOP = ord(".")
_OPCODES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}


class BadPickle(ValueError):
    """Not a pickle of plain values; the text says what and at which byte."""


class _NamesNothing(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> object:
        raise BadPickle(f"asks for {module_name}.{global_name}: refused")


def load_pickle(data: bytes) -> object:
    """The value of a pickle of dicts, lists, tuples, sets, strings, bytes, numbers, booleans and None.

    Raises BadPickle for anything else, for a cut file and for one past the limits.
    """
    end = check_opcodes(data)
    try:
        value: object = _NamesNothing(io.BytesIO(data[:end])).load()
    except BadPickle:
        raise
    except (
        pickle.UnpicklingError,
        EOFError,
        IndexError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
    ) as wrong:
        raise BadPickle(f"is cut or no pickle: {str(wrong)[:80]}") from None
    return value


def check_opcodes(data: bytes, texts: list[tuple[int, int]] | None = None) -> int:
    """The byte after the pickle's end, if all that it does is to make plain values. Raises BadPickle.

    texts: a list that gets (begin, end) of each text or string of bytes.
    """
    if data.count(b"]") + data.count(b"}") + data.count(b"\x8f") > MAX_CONTAINERS:
        raise BadPickle(f"has more than {MAX_CONTAINERS} containers")
    at, tuples, size = 0, 0, len(data)
    while at < size:
        run = _PLAIN_RUN.match(data, at)
        if run is not None:
            at = run.end()
            continue
        op = data[at]
        if op in _TUPLES:
            tuples += 1
            if tuples > MAX_TUPLES:
                raise BadPickle(f"has more than {MAX_TUPLES} tuples")
            at += 1
        elif op in _SIZED:
            width = _SIZED[op]
            length = int.from_bytes(data[at + 1 : at + 1 + width], "little")
            if length > size - at - 1 - width or (op in _LONGS and length > MAX_LONG_BYTES):
                raise BadPickle(f"is cut or damaged: {_OPCODES[op]} of {length} bytes at byte {at} of {size}")
            at += 1 + width + length
            if texts is not None and op not in _LONGS:
                texts.append((at - length, at))
        elif op == _FRAME:
            if int.from_bytes(data[at + 1 : at + 9], "little") > size - at - 9:
                raise BadPickle(f"is cut or damaged: a frame at byte {at} goes past its end")
            at += 9
        elif op == _STOP:
            return at + 1
        else:
            name = _OPCODES.get(op, f"0x{op:02x}")
            raise BadPickle(f"has {name} at byte {at}, which makes more than plain values or is damaged: refused")
    raise BadPickle(f"ends in the middle ({size} bytes)")
