"""Pickles of plain values only, read by a small stack machine: a dump cannot make this process run anything.

torch writes protocol 2 with containers, strings, numbers, None and booleans; re-saved dumps use protocols up to 5.
Opcodes that name, build or call an object are refused, so there is nothing that a hostile file could reach.
Memory is bounded by the limits below, whatever counts and memo indices the file claims.
"""

from __future__ import annotations

import struct

MAX_CONTAINERS = 1_500_000
#: Values held by containers and the stack together. A ring of 20,000 entries with stacks of 30 frames has 3 million.
MAX_VALUES = 8_000_000
MAX_LONG_BYTES = 255
#: How often the size of the stack is looked at, in bytes of input.
CHUNK_BYTES = 1 << 16

#: Opcodes that ask for a class, a function, a call or another file, by the names of pickletools.
REFUSED = {
    ord("c"): "GLOBAL", 0x93: "STACK_GLOBAL", ord("R"): "REDUCE", ord("b"): "BUILD", ord("i"): "INST",
    ord("o"): "OBJ", 0x81: "NEWOBJ", 0x92: "NEWOBJ_EX", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4",
    ord("P"): "PERSID", ord("Q"): "BINPERSID", 0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER",
}  # fmt: skip

_I4 = struct.Struct("<i").unpack_from
_U4 = struct.Struct("<I").unpack_from
_U8 = struct.Struct("<Q").unpack_from
_F8 = struct.Struct(">d").unpack_from


class BadPickle(ValueError):
    """Not a pickle of plain values; the text says what and at which byte."""


def load_pickle(data: bytes) -> object:
    """The value of a pickle of dicts, lists, tuples, strings, bytes, numbers, booleans and None.

    Raises BadPickle for anything else, for a cut file and for one past the limits.
    """
    try:
        return _Machine(data).run()
    except (IndexError, struct.error):
        raise BadPickle(f"the pickle ends in the middle ({len(data)} bytes)") from None


class _Machine:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._containers = 0
        self._values = 0

    def run(self) -> object:
        # Most of a dump is memo look-ups, marks, small numbers and strings: those come first.
        data = self._data
        stack: list[object] = []
        marks: list[int] = []
        memo: dict[int, object] = {}
        push = stack.append
        at = 0
        while True:
            self._check(len(stack))
            until = at + CHUNK_BYTES
            while at < until:
                op = data[at]
                at += 1
                if op == 0x68:  # BINGET
                    index = data[at]
                    at += 1
                    push(_remembered(memo, index, at))
                elif op == 0x28:  # MARK
                    marks.append(len(stack))
                elif op == 0x4B:  # BININT1
                    push(data[at])
                    at += 1
                elif op == 0x4D:  # BININT2
                    push(data[at] | data[at + 1] << 8)
                    at += 2
                elif op == 0x4A:  # BININT
                    push(_I4(data, at)[0])
                    at += 4
                elif op == 0x6A:  # LONG_BINGET
                    push(_remembered(memo, _U4(data, at)[0], at))
                    at += 4
                elif op == 0x4E:  # NONE
                    push(None)
                elif op == 0x88:  # NEWTRUE
                    push(True)
                elif op == 0x89:  # NEWFALSE
                    push(False)
                elif op == 0x5D:  # EMPTY_LIST
                    self._containers += 1
                    push([])
                elif op == 0x7D:  # EMPTY_DICT
                    self._containers += 1
                    push({})
                elif op == 0x65:  # APPENDS
                    start = _popped(marks, at)
                    _list_at(stack, start - 1, at).extend(stack[start:])
                    self._values += len(stack) - start
                    del stack[start:]
                elif op == 0x75:  # SETITEMS
                    start = _popped(marks, at)
                    _set_items(stack, start, at)
                    self._values += len(stack) - start
                    del stack[start:]
                elif op == 0x71:  # BINPUT
                    memo[data[at]] = stack[-1]
                    at += 1
                elif op == 0x72:  # LONG_BINPUT
                    memo[_U4(data, at)[0]] = stack[-1]
                    at += 4
                elif op == 0x94:  # MEMOIZE
                    memo[len(memo)] = stack[-1]
                elif op in _SIZED:
                    width, kind = _SIZED[op]
                    size = data[at] if width == 1 else _U4(data, at)[0] if width == 4 else _U8(data, at)[0]
                    at += width
                    if size > len(data) - at:
                        raise BadPickle(f"a value of {size} bytes at byte {at} goes past the end of the file")
                    push(_sized_value(kind, data[at : at + size], at))
                    at += size
                elif op == 0x61:  # APPEND
                    value = stack.pop()
                    _list_at(stack, len(stack) - 1, at).append(value)
                    self._values += 1
                elif op == 0x73:  # SETITEM
                    _set_items(stack, len(stack) - 2, at)
                    self._values += 1
                    del stack[-2:]
                elif op in (0x29, 0x85, 0x86, 0x87):  # EMPTY_TUPLE, TUPLE1, TUPLE2, TUPLE3
                    start = len(stack) - (0 if op == 0x29 else op - 0x84)
                    if start < 0:
                        raise BadPickle(f"a tuple of values that are not there at byte {at}")
                    self._tuple(stack, start)
                elif op == 0x74:  # TUPLE
                    self._tuple(stack, _popped(marks, at))
                elif op == 0x47:  # BINFLOAT
                    push(_F8(data, at)[0])
                    at += 8
                elif op == 0x80:  # PROTO
                    at += 1
                elif op == 0x95:  # FRAME
                    at += 8
                elif op == 0x30:  # POP
                    stack.pop()
                elif op == 0x31:  # POP_MARK
                    del stack[_popped(marks, at) :]
                elif op == 0x2E:  # STOP
                    self._check(len(stack))
                    return stack.pop()
                elif op in REFUSED:
                    raise BadPickle(
                        f"asks for code ({REFUSED[op]} at byte {at - 1}), which a flight-recorder dump never does: refused"
                    )
                else:
                    raise BadPickle(f"opcode 0x{op:02x} at byte {at - 1} is none of a flight-recorder dump")

    def _tuple(self, stack: list[object], start: int) -> None:
        self._containers += 1
        self._values += len(stack) - start
        stack[start:] = [tuple(stack[start:])]

    def _check(self, stacked: int) -> None:
        if self._containers > MAX_CONTAINERS or self._values + stacked > MAX_VALUES:
            raise BadPickle(f"more than {MAX_CONTAINERS} containers or {MAX_VALUES} values")


#: Opcode -> (bytes of the length, what the bytes are).
_SIZED = {
    0x58: (4, "text"), 0x8C: (1, "text"), 0x8D: (8, "text"), 0x8A: (1, "long"), 0x8B: (4, "long"),
    0x54: (4, "bytes"), 0x55: (1, "bytes"), 0x42: (4, "bytes"), 0x43: (1, "bytes"), 0x8E: (8, "bytes"),
}  # fmt: skip


def _sized_value(kind: str, raw: bytes, at: int) -> object:
    if kind == "text":
        return raw.decode("utf-8", "replace")
    if kind == "bytes":
        return raw
    if len(raw) > MAX_LONG_BYTES:
        raise BadPickle(f"a number of {len(raw)} bytes at byte {at}")
    return int.from_bytes(raw, "little", signed=True)


def _remembered(memo: dict[int, object], index: int, at: int) -> object:
    try:
        return memo[index]
    except KeyError:
        raise BadPickle(f"memo entry {index} asked for at byte {at} was never stored") from None


def _popped(marks: list[int], at: int) -> int:
    if not marks:
        raise BadPickle(f"no mark at byte {at}")
    return marks.pop()


def _list_at(stack: list[object], index: int, at: int) -> list[object]:
    target = stack[index] if index >= 0 else None
    if not isinstance(target, list):
        raise BadPickle(f"items for a list at byte {at}, and there is none")
    return target


def _set_items(stack: list[object], start: int, at: int) -> None:
    target = stack[start - 1] if start >= 1 else None
    if not isinstance(target, dict) or (len(stack) - start) % 2:
        raise BadPickle(f"items for a dictionary at byte {at}, and there is none")
    for index in range(start, len(stack), 2):
        key = stack[index]
        if not isinstance(key, (str, int, bytes)):
            raise BadPickle(f"a key at byte {at} that is neither text nor number")
        target[key] = stack[index + 1]
