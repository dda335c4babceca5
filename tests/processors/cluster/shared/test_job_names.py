"""What a server calls a job, as the job that it is here."""

from __future__ import annotations

import pytest

from tests.processors.cluster.conftest import MemoryTable
from whichrank.processors.cluster.shared.job_names import job_of
from whichrank.processors.cluster.shared.placements import Placements
from whichrank.processors.placement_document import PlacementReport

#: Job, owner, nodes.
RUNNING = (
    ("4711", "1001", ("node-1", "node-2.cluster.local")),
    ("4712", "1002", ("node-3",)),
    ("4713", "1002", ("node-4",)),
    ("\x1f4714\x1f1009\x1f", "1009", ("node-5",)),
    ("train-7", "1005", ("gpu-a",)),
    ("1003", "1006", ("gpu-b",)),
    ("other", "1003", ("gpu-c",)),
)
OVER = ("4700", "1007", ("node-9",))


@pytest.fixture(scope="module")
def placements() -> Placements:
    known = Placements(MemoryTable())
    for job, owner, nodes in (*RUNNING, OVER):
        known.take(
            PlacementReport(
                job=job,
                attempt="a",
                run=job,
                name="",
                owner=owner,
                world_size=len(nodes),
                begin=0.0,
                end=50.0 if job == OVER[0] else None,
                nodes={node: str(i) for i, node in enumerate(nodes)},
                moved=None,
            )
        )
    return known


@pytest.mark.parametrize(
    ("named", "job"),
    [
        ("4711", "4711"),  # jobid_var=SLURM_JOB_ID
        ("4711.batch", "4711"),
        ("4711.0", "4711"),
        ("python3.1001", "4711"),  # procname_uid
        ("python3.1002", ""),  # two jobs of that user: nobody knows which
        ("dd.1002:4713", "4713"),  # %e.%u:%j
        ("python3:1002:node-3", "4712"),  # a user of two jobs, on one node
        ("node_exporter:989:node-2", "4711"),
        ("4711@node-1", "4711"),
        ("4714", "\x1f4714\x1f1009\x1f"),
        ("train-7", "train-7"),
        ("rsync.0", ""),
        ("1003", ""),  # a job's id, and another one's user
        ("4700", ""),  # it is over
        ("", ""),
        ("::..", ""),
    ],
)
def test_names(placements: Placements, named: str, job: str) -> None:
    assert job_of(named, placements, 100.0, 120.0) == job


def test_a_job_that_ran_when_the_burst_began_is_meant(placements: Placements) -> None:
    assert job_of("4700", placements, 40.0, 120.0) == "4700"
