"""What goes into an incident's archive, under which name, and what should be there and is not. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ...agents.evidence.flight_dumps import DUMP_BYTES
from ...agents.privacy.redaction_filter import pack_again, unpack
from ...processors.cluster.evidence_requests import FILES_TO_ASK, MOST_ASKED_FOR_FILES, NOTHING_TO_ASK
from ...telemetry.incident_document import SuspectEntry
from ...telemetry.vocabulary import Bucket, Kind
from .chosen import Chosen, KeptFile

#: INCIDENT-LAUNCH-rank-00002-PID-WHAT or INCIDENT-LAUNCH-node-NAME-kernel.log, the incident only of what it asked for.
_NAME = re.compile(
    r"(?:(?P<incident>[0-9a-f]{16})-)?(?P<launch>.*?)-"
    r"(?:rank-(?P<rank>\d{1,8})-(?P<pid>\d{1,10})(?P<rest>[-.].*)|node-(?P<node>.+)-kernel\.log)\Z"
)
#: A name may come over the network; it is no way out of the archive's folder.
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+|\A\.+")
#: By the end of a name: the action that asks for it, and in words what it is.
_KINDS: tuple[tuple[str, str, str], ...] = (
    (".dump.gz", "flight_recorder", "flight recorder's dump"),
    (".stack.txt", "stack", "stack"),
    ("-history.ring-events.gz", "history", "events of the last minutes"),
    (".ring.gz", "ring", "ring"),
    (".log", "log_tail", "end of its output"),
)
#: By the end of a name: the form of evidence that it is; any other is a text.
_FORMS = ((".dump.gz", "dump.gz"), (".ring-events.gz", "ring-events.gz"), (".ring.gz", "ring.gz"))
#: Of one export: each MB of it is looked through for secrets, which takes a quarter of a second.
MOST_UNPACKED_BYTES = 64 << 20
#: After so many that are too large, nothing packed is unpacked any more.
MOST_FLOODS = 16
_WHY_MISSING = {
    "stack": "it moved on, had ended, or could not be read (py-spy missing, no right to trace)",
    "log_tail": "its output goes to a pipe or a terminal, or it had ended before it was known",
    "history": "its ring held nothing, or it was not known to the node's agent",
    "flight_recorder": "it has written no dump where TORCH_FR_DUMP_TEMP_FILE or its default says; torch writes one when"
    " a collective times out, and a rank that stands still may be unable to",
    "kernel_log": "the node's agent was not asked, or its folder is not part of this run's",
}
_NOT_BLOCKING = frozenset({Bucket.PLANNED, Bucket.TELEMETRY})


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveEntry:
    """A file of the archive. action: which request gives it, "" of ours."""

    path: str
    content: bytes
    what: str
    action: str = ""
    rank: int | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    what: str
    who: str
    why: str

    def __str__(self) -> str:
        return f"{self.what.replace('_', ' ')} of {self.who}: {self.why}"


def arrange(files: Iterable[KeptFile], chosen: Chosen) -> list[ArchiveEntry]:
    """Evidence by rank and node, dumps together and unpacked, as analysers want them; in order of paths.

    What is there twice (a stack that the agent took by itself, and in answer to a request) is taken once.
    """
    entries: dict[str, ArchiveEntry] = {}
    taken: set[tuple[str, int | None, bytes]] = set()
    for file in sorted(files, key=lambda file: (not file.name.startswith(chosen.last.id), file.name)):
        for entry in _places(file):
            same = (entry.action, entry.rank, entry.content)
            if same not in taken and entry.path in entries:
                continue
            if same not in taken:
                taken.add(same)
                entries[entry.path] = entry
            break
    return sorted(entries.values(), key=lambda entry: entry.path)


def _places(file: KeptFile) -> Iterator[ArchiveEntry]:
    """Where a file may go: the first place that is free."""
    safe = _UNSAFE.sub("_", file.name)
    found = _NAME.match(safe)
    if found is None:
        yield ArchiveEntry(path=f"evidence/{safe}", content=file.content, what="evidence")
        return
    incident, launch, node = found["incident"] or "", found["launch"], found["node"]
    if node is not None:
        for path in (f"kernel-log/{node}.log", f"kernel-log/{node}-{incident or launch}.log"):
            yield ArchiveEntry(path=path, content=file.content, what="kernel log", action="kernel_log", node=node)
        return
    rank, pid, rest = int(found["rank"]), found["pid"], found["rest"].removeprefix("-")
    action, what = next(((a, w) for end, a, w in _KINDS if found["rest"].endswith(end)), ("", "evidence"))
    folder, content = f"rank-{rank:05d}", file.content
    if action == "flight_recorder":
        raw = unpack(content, DUMP_BYTES)
        if raw is not None:
            name = rest.removesuffix(".dump.gz").lstrip(".") or "dump"
            for path in (f"flight-recorder/{name}", f"flight-recorder/{launch}-{pid}/{name}"):
                yield ArchiveEntry(path=path, content=raw, what=what, action=action, rank=rank)
    name = f"{launch}-{pid}{'' if rest.startswith('.') else '-'}{rest}"
    for path in (f"{folder}/{name}", f"{folder}/{incident}/{name}"):
        yield ArchiveEntry(path=path, content=content, what=what, action=action, rank=rank)


def without_secrets(file: KeptFile) -> KeptFile:
    """The file as it may go to somebody else: an earlier release may have kept secrets in it.

    Its content is empty if nobody can look into it.
    """
    return replace(file, content=pack_again(file.content, _form_of(file)) if file.content else b"")


def without_floods(files: Iterable[KeptFile]) -> Iterator[KeptFile]:
    """The files, those without content that would unpack to more than all may together: a small one may be a flood."""
    left, floods = MOST_UNPACKED_BYTES, 0
    for file in files:
        size = len(file.content)
        if _form_of(file) != "text":
            raw = unpack(file.content, min(left, DUMP_BYTES)) if floods < MOST_FLOODS else None
            size = left + 1 if raw is None else len(raw)
        if size > left:
            floods += 1
            yield replace(file, content=b"")
            continue
        left -= size
        yield file


def _form_of(file: KeptFile) -> str:
    return next((form for end, form in _FORMS if file.name.endswith(end)), "text")


def find_missing(chosen: Chosen, entries: Iterable[ArchiveEntry]) -> list[Missing]:
    """The evidence that an incident of this kind asks for and that is not among the entries, with the reason."""
    incident, there = chosen.last, list(entries)
    kind = incident.kind
    if not isinstance(kind, Kind):  # of a later release
        return []
    ranks = [suspect for suspect in incident.suspects if suspect.rank is not None]
    actions = [*(() if kind in NOTHING_TO_ASK else ("stack",)), *FILES_TO_ASK.get(kind, ())]
    missing = []
    for suspect in ranks[:MOST_ASKED_FOR_FILES]:
        for action in actions:
            if not any(entry.action == action and entry.rank == suspect.rank for entry in there):
                missing.append(Missing(what=action, who=f"rank {suspect.rank}", why=_WHY_MISSING[action]))
    if incident.bucket not in _NOT_BLOCKING:
        missing += _missing_kernel_logs(incident.suspects, there)
    return missing


def _missing_kernel_logs(suspects: Iterable[SuspectEntry], there: list[ArchiveEntry]) -> Iterator[Missing]:
    nodes = list(dict.fromkeys(suspect.node for suspect in suspects if suspect.node))
    for node in nodes[:MOST_ASKED_FOR_FILES]:
        entry = next((entry for entry in there if entry.action == "kernel_log" and entry.node == node), None)
        if entry is None:
            yield Missing(what="kernel_log", who=node, why=_WHY_MISSING["kernel_log"])
        elif entry.content.startswith(b"# the kernel log cannot be read: "):
            why = entry.content.decode("utf-8", "replace").partition(": ")[2].strip()
            yield Missing(what="kernel_log", who=node, why=why)
