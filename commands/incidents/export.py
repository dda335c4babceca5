"""``whichrank incidents export``: the archive. The same incident and evidence give the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ...telemetry.incident_writing import write_incident
from ...telemetry.printable import is_incident_id, printable
from ...telemetry.redaction import redact, redact_data
from ..run_folder.run_description import RunDescription
from ..run_folder.run_directory import Unusable
from ..support.stderr import say
from .chosen import Chosen, IncidentSource, choose
from .contents import ArchiveEntry, Missing, arrange, find_missing, without_floods, without_secrets
from .readme import readme

SCHEMA = 1
MANIFEST = "manifest.json"


def export_incident(source: IncidentSource, wanted: str, *, out: Path | None, force: bool, as_json: bool) -> None:
    """Writes the archive of an incident (id or beginning of one), and prints what is in it.

    Raises Unusable, KafkaTrouble.

    out None: ./incident-ID.tar.gz; force: over one that is there.
    """
    chosen = choose(source.revisions(), wanted)
    id_ = chosen.last.id
    if not is_incident_id(id_):
        raise Unusable(f"{printable(id_, 80)!r}: no incident has such an id; the document is damaged or forged")
    path = out or Path(f"incident-{id_}.tar.gz")
    if os.path.lexists(path) and not force:
        raise Unusable(f"{path}: exists already; choose another --out, or --force")
    kept = [without_secrets(file) for file in without_floods(source.evidence(chosen))]
    left_out = (f"{file.name}: damaged, and left out" for file in kept if not file.content)
    problems = [*source.problems, *left_out]
    entries = arrange((file for file in kept if file.content), chosen)
    missing = find_missing(chosen, entries)
    entries = [*_own_entries(chosen, source.run(), entries, missing), *entries]
    manifest = _manifest(chosen, entries, missing, problems)
    entries.append(ArchiveEntry(path=MANIFEST, content=_json(asdict(manifest)), what="sizes and hashes"))
    archive = pack(f"incident-{id_}", entries, int(chosen.last.times.detected_s or 0))
    try:
        _write(path, archive)
    except OSError as error:
        raise Unusable(f"{path}: cannot be written: {error.strerror or error}; choose another --out") from error
    if as_json:
        plain = asdict(manifest)
        told = {name: plain[name] for name in ("incident", "revision", "files", "missing", "problems")}
        print(json.dumps({"schema": SCHEMA, "archive": str(path), "bytes": len(archive), "from": source.where, **told}))
        return
    if not id_.startswith(wanted):
        say(f"{wanted} went into incident {id_}; this is that one")
    for problem in problems:
        say(problem)
    print(f"{path}: {len(entries)} files, {len(archive)} bytes")
    for each in missing:
        print(printable(f"missing: {each}"))


def pack(folder: str, entries: Iterable[ArchiveEntry], time_s: int) -> bytes:
    """The entries as bytes of a .tar.gz, below ``folder``, that depends on nothing but these: no owner, no clock.

    time_s: of all files, Unix seconds; they are in order of their paths.
    """
    raw = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for entry in sorted(entries, key=lambda entry: entry.path):
            member = tarfile.TarInfo(f"{folder}/{entry.path}")
            member.size, member.mtime, member.mode = len(entry.content), max(time_s, 0), 0o644
            archive.addfile(member, io.BytesIO(entry.content))
    return raw.getvalue()


def _own_entries(
    chosen: Chosen, run: RunDescription | None, evidence: list[ArchiveEntry], missing: list[Missing]
) -> list[ArchiveEntry]:
    document = {
        "schema": SCHEMA,
        "incident": redact_data(write_incident(chosen.last)),
        "revisions": [redact_data(write_incident(each)) for each in chosen.revisions],
        "merged": [redact_data(write_incident(each)) for each in chosen.merged],
    }
    files = [f"{'incident.json':<44} all revisions", f"{MANIFEST:<44} sizes, hashes, what is missing"]
    files += [f"{entry.path:<44} {entry.what}, {len(entry.content)} bytes" for entry in evidence]
    text = readme(chosen, run, files, [str(each) for each in missing])
    return [
        ArchiveEntry(path="README.txt", content=redact(text).encode("utf-8", "replace"), what="the incident in words"),
        ArchiveEntry(path="incident.json", content=_json(document), what="all revisions"),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """A file of the archive. rank, node: whose evidence it is; None of ours."""

    path: str
    what: str
    rank: int | None
    node: str | None
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """manifest.json, field by field. whichrank: the release that made the archive."""

    schema: int = SCHEMA
    incident: str
    revision: int
    whichrank: str
    files: tuple[ManifestFile, ...]
    missing: tuple[Missing, ...]
    problems: tuple[str, ...]


def _manifest(chosen: Chosen, entries: list[ArchiveEntry], missing: list[Missing], problems: list[str]) -> Manifest:
    return Manifest(
        incident=chosen.last.id,
        revision=chosen.last.revision,
        whichrank=_release(),
        files=tuple(
            ManifestFile(
                path=entry.path,
                what=entry.what,
                rank=entry.rank,
                node=entry.node,
                bytes=len(entry.content),
                sha256=hashlib.sha256(entry.content).hexdigest(),
            )
            for entry in sorted(entries, key=lambda entry: entry.path)
        ),
        missing=tuple(missing),
        problems=tuple(problems),
    )


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _write(path: Path, content: bytes) -> None:
    """In one piece. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _release() -> str:
    try:
        return version("whichrank")
    except PackageNotFoundError:
        return "unknown"
