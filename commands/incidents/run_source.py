"""Incidents and evidence in the folder of ``whichrank run``. Reads only."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ...telemetry.incident_document import IncidentDocument
from ...telemetry.regular_files import open_regular, read_regular
from ..run_folder.incident_log import MOST_INCIDENTS_BYTES, read_incident_line, read_lines
from ..run_folder.labels import LABELS_FILE, append_label, read_labels, with_labels
from ..run_folder.people_codec import PeopleLabel
from ..run_folder.run_description import RunDescription
from ..run_folder.run_directory import EVIDENCE_FOLDER, INCIDENTS_FILE, RunDirectory, Unusable
from .chosen import MAX_BYTES, Chosen, KeptFile, belongs

RUNS_FOLDER = Path("whichrank-out")
MAX_FILES = 4096
#: Lines that are no incidents, and are named.
MAX_NAMED = 20
#: Between looks at what a run has written.
FOLLOW_PERIOD_S = 0.5


class RunSource:
    """The folder of ``whichrank run``; of several nodes, also the folders of the others where they lie in it."""

    def __init__(self, path: Path | None) -> None:
        """None: the newest run below ``whichrank-out``. Raises Unusable."""
        self._directory = RunDirectory(path or newest_run())
        self.where = str(self._directory.path)
        self.problems: list[str] = []

    def revisions(self) -> list[IncidentDocument]:
        """All revisions in the run's file, with what people have said since.

        Raises Unusable where there is no file that can be read.
        """
        path = self._directory.incidents
        try:
            lines = list(read_lines(path, self._directory.owner, MOST_INCIDENTS_BYTES))
        except FileNotFoundError:
            raise Unusable(f"{path}: not there; is {self.where} the folder of a run? (--from)") from None
        except OSError as error:
            raise Unusable(f"{path}: cannot be read: {error.strerror or error}") from error
        left_out = [number for number, line, document in lines if document is None and line.strip()]
        for number in left_out[:MAX_NAMED]:
            self.problems.append(f"{path}: line {number} is no incident document, and left out")
        if len(left_out) > MAX_NAMED:
            self.problems.append(f"{path}: {len(left_out) - MAX_NAMED} more lines are none, and left out")
        documents = [document for _, _, document in lines if document is not None]
        try:
            labels, _ = read_labels(self._directory.path)
        except OSError as error:
            self.problems.append(f"{self._directory.path / LABELS_FILE}: {error.strerror or error}")
            return documents
        return with_labels(documents, labels)

    def follow(self) -> Iterator[list[IncidentDocument]]:
        """Revisions as they come, until run.json says that the run has ended, and what it wrote by then is read.

        An empty list now and then.
        """
        path, read = self._directory.incidents, 0
        while True:
            has_ended = self._has_ended()
            documents, read = _documents_after(path, read, self._directory.owner)
            yield documents
            if has_ended:
                return
            time.sleep(FOLLOW_PERIOD_S)

    def evidence(self, chosen: Chosen) -> list[KeptFile]:
        """Evidence for this incident of all nodes whose folders lie here.

        What is too much, or gone meanwhile, is a problem.
        """
        files: list[KeptFile] = []
        left_bytes, owner = MAX_BYTES, self._directory.owner
        for folder in (self._directory.evidence, *sorted(self._directory.path.glob(f"node-*/{EVIDENCE_FOLDER}"))):
            for entry in self._listing(folder):
                if not belongs(entry.name, chosen):
                    continue
                try:
                    if len(files) >= MAX_FILES or entry.stat(follow_symlinks=False).st_size > left_bytes:
                        self.problems.append(
                            f"{folder}: more than {MAX_FILES} files or {MAX_BYTES >> 20} MB; the rest is left out"
                        )
                        return files
                    content = read_regular(Path(entry.path), left_bytes, owner)
                except OSError as error:  # the run may go on, and the oldest evidence makes room
                    self.problems.append(f"{entry.path}: {error.strerror or error}")
                    continue
                left_bytes -= len(content)
                files.append(KeptFile(name=entry.name, content=content))
        return files

    def run(self) -> RunDescription | None:
        """What run.json says; None where it cannot be read, which is a problem."""
        try:
            return self._directory.read_run()
        except Unusable as unusable:
            self.problems.append(str(unusable))
            return None

    def label(self, incident: IncidentDocument, label: PeopleLabel) -> None:
        """Appends what a person says to labels.jsonl. Raises Unusable."""
        append_label(self._directory.path, label, incident.cluster or "")

    def _has_ended(self) -> bool:
        try:
            return self._directory.read_run().ended is not None
        except Unusable:  # being written, or not there yet
            return False

    def _listing(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                found = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        except OSError as error:
            self.problems.append(f"{folder}: {error.strerror or error}")
            return []
        return sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _documents_after(path: Path, after: int, owner: int | None) -> tuple[list[IncidentDocument], int]:
    """Of whole lines beyond byte ``after``, and how far that is. Raises Unusable."""
    try:
        with open(open_regular(path, owner), "rb") as file:
            file.seek(after)
            content = file.read(MOST_INCIDENTS_BYTES)
    except OSError as error:
        raise Unusable(f"{path}: cannot be read: {error.strerror or error}") from error
    whole = content[: content.rfind(b"\n") + 1]
    documents = []
    for line in whole.splitlines():
        with contextlib.suppress(ValueError):
            documents.append(read_incident_line(line))
    return documents, after + len(whole)


def newest_run() -> Path:
    """The folder of the run whose incidents.jsonl changed last. Raises Unusable where there is none."""
    runs: list[tuple[int, str]] = []
    try:
        for path in RUNS_FOLDER.iterdir():
            with contextlib.suppress(OSError):
                runs.append(((path / INCIDENTS_FILE).stat().st_mtime_ns, path.name))
    except OSError:
        pass
    if not runs:
        raise Unusable(f"{RUNS_FOLDER}: no run in it; name the folder of one with --from, or --kafka")
    return RUNS_FOLDER / max(runs)[1]
