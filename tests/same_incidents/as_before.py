"""What is asked of a run that is judged again."""

from __future__ import annotations

import json

from tests.same_incidents.facts import first_difference
from tests.same_incidents.judged import Documents
from tests.same_incidents.kept import read_lines
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.incident_writing import write_incident


def assert_same(set_name: str, name: str, line: str) -> None:
    """line: of the run as it is judged now; it must be the golden one of its set."""
    before = read_lines(set_name)[name]
    assert line == before, first_difference(json.loads(before), json.loads(line))


def assert_types_hold_all(revisions: Documents) -> None:
    """Byte for byte, also where nobody puts the fields in order."""
    for document in revisions:
        assert json.dumps(write_incident(read_incident(document))) == json.dumps(document)
