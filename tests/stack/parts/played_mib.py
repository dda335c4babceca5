"""Run by snmpd for a part of the tree (``pass_persist``): answers from a file, in which counters have a rate.

A line of the file: OID, type of snmpd's, value, and how much it grows in a second. The file is read anew when it has
changed; a counter goes on from where it stood. Every question is counted in FILE.asked. Standard library alone.
"""

from __future__ import annotations

import os
import sys
import time
from bisect import bisect_right

Oid = tuple[int, ...]


class Tree:
    def __init__(self, path: str) -> None:
        self._path = path
        self._read_ns = -1
        self._rows: dict[Oid, tuple[str, str, float]] = {}
        #: What a counter had when its rate last changed, and when that was.
        self._stood: dict[Oid, tuple[float, float]] = {}

    def look(self) -> None:
        now_ns = os.stat(self._path).st_mtime_ns
        if now_ns == self._read_ns:
            return
        stood = {oid: (self._number(oid), time.monotonic()) for oid, row in self._rows.items() if row[2]}
        rows: dict[Oid, tuple[str, str, float]] = {}
        with open(self._path) as file:
            for line in file:
                name, kind, value, rate = line.rstrip("\n").split("\t")
                rows[tuple(map(int, name.strip(".").split(".")))] = (kind, value, float(rate))
        self._stood = {
            oid: stood.get(oid, (float(value), time.monotonic())) for oid, (_, value, rate) in rows.items() if rate
        }
        self._rows, self._read_ns = rows, now_ns

    def answer(self, oid: Oid) -> str:
        """Three lines, or NONE."""
        if oid not in self._rows:
            return "NONE"
        kind, value, rate = self._rows[oid]
        return "\n".join(("." + ".".join(map(str, oid)), kind, str(int(self._number(oid))) if rate else value))

    def after(self, oid: Oid) -> str:
        known = sorted(self._rows)
        at = bisect_right(known, oid)
        return self.answer(known[at]) if at < len(known) else "NONE"

    def _number(self, oid: Oid) -> float:
        value, since_s = self._stood[oid]
        return value + self._rows[oid][2] * (time.monotonic() - since_s)


def serve(path: str) -> None:
    tree = Tree(path)
    for line in sys.stdin:
        word = line.strip()
        if word == "PING":
            print("PONG", flush=True)
        elif word in ("get", "getnext"):
            oid = tuple(map(int, sys.stdin.readline().strip().strip(".").split(".")))
            tree.look()
            with open(f"{path}.asked", "ab") as asked:
                asked.write(b".")
            print(tree.answer(oid) if word == "get" else tree.after(oid), flush=True)
        elif word == "set":
            sys.stdin.readline()
            sys.stdin.readline()
            print("not-writable", flush=True)
        else:
            return


if __name__ == "__main__":
    serve(sys.argv[1])
