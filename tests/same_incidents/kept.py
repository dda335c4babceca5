"""What is kept beside this module: golden lines with the sentences beside them, and captures of real runs.

golden/simulated.jsonl.gz   a line for each simulated run
golden/captures.jsonl.gz    a line for each capture kept here
golden/runs.jsonl.gz        a line for each real run whose results lie on this machine; not committed, it names paths
golden/*.texts.json.gz      by run, the sentences of all its revisions
captures/NAME.tar.xz        run.json and capture/ of a real run
"""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
CAPTURES = HERE / "captures"

Texts = dict[str, list[str]]


def read_lines(name: str) -> dict[str, str]:
    """Golden lines of a set by run."""
    path = GOLDEN / f"{name}.jsonl.gz"
    if not path.exists():
        return {}
    return {str(json.loads(line)["name"]): line for line in gzip.decompress(path.read_bytes()).decode().splitlines()}


def read_texts(name: str) -> Texts:
    path = GOLDEN / f"{name}.texts.json.gz"
    return dict(json.loads(gzip.decompress(path.read_bytes()))) if path.exists() else {}


def write_set(name: str, lines: Mapping[str, str], texts: Texts) -> None:
    """In the order of names, so that the same content is the same file."""
    GOLDEN.mkdir(exist_ok=True)
    text = "".join(f"{lines[run]}\n" for run in sorted(lines))
    _write(GOLDEN / f"{name}.jsonl.gz", text)
    _write(GOLDEN / f"{name}.texts.json.gz", json.dumps(texts, ensure_ascii=False, sort_keys=True, indent=0))


def _write(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def captures() -> list[Path]:
    return sorted(CAPTURES.glob("*.tar.xz"))


def name_of(packed: Path) -> str:
    return packed.name.removesuffix(".tar.xz")


def unpack(packed: Path, folder: Path) -> Path:
    """The run's folder, below ``folder``."""
    target = folder / name_of(packed)
    with tarfile.open(packed) as archive:
        archive.extractall(target, filter="data")
    return target
