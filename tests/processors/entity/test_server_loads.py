"""Which job burdens a server, by the server's own count per job."""

from __future__ import annotations

from typing import Any

from tests.processors.entity.test_past import Entity
from whichrank.processors.entity.loads import filesystem_of
from whichrank.processors.entity.server_loads import FORGOTTEN_S

JOB = "whichrank.storage.server.job.operations"


class Server:
    """A metadata target that counts by job."""

    def __init__(self) -> None:
        self.entity = Entity("storage", "mds1")
        self.counts: dict[tuple[str, str], float] = {}

    def look(self, *rates: tuple[str, str, float]) -> None:
        """Each (job, operation, per second since the last look)."""
        for job, operation, rate in rates:
            self.counts[job, operation] = self.counts.get((job, operation), 0.0) + 15.0 * rate
        points = []
        for (job, operation), count in self.counts.items():
            named = {"whichrank.storage.operation": operation, "whichrank.storage.job": job}
            points.append((JOB, count, {"whichrank.storage.target": "lfs-MDT0000", **named}))
        self.entity.look(*points)

    @property
    def loads(self) -> list[dict[str, Any]]:
        return [dict(finding.body["load"]) for finding in self.entity.findings if "load" in finding.body]


def usual(server: Server, looks: int = 14) -> None:
    for _ in range(looks):
        server.look(("4711", "getattr", 40.0), ("4712", "getattr", 60.0), ("4712", "open", 20.0))


def test_a_burst_of_one_job_is_told_with_what_all_ask_and_ended() -> None:
    server = Server()
    usual(server)
    assert server.loads == []
    for _ in range(3):
        server.look(("4711", "getattr", 9000.0), ("4712", "getattr", 60.0), ("4712", "open", 20.0))
    (begun,) = server.loads
    assert (begun["service"], begun["operation"], begun["job"]) == ("lfs", "metadata", "4711")
    assert (begun["until"], round(begun["rate"]), round(begun["whole"])) == (None, 9000, 9080)
    usual(server, 4)
    ended = server.loads[-1]
    assert ended["since"] == begun["since"]
    assert ended["until"] is not None


def test_an_operation_that_a_known_job_does_for_the_first_time_counts_from_its_last_look() -> None:
    server = Server()
    usual(server)
    for _ in range(2):
        server.look(("4711", "getattr", 40.0), ("4712", "getattr", 60.0), ("4711", "unlink", 5000.0))
    assert [load["job"] for load in server.loads] == ["4711"]


def test_a_job_that_is_seen_first_has_counted_for_nobody_knows_how_long() -> None:
    server = Server()
    usual(server)
    server.counts["old", "getattr"] = 9e9
    server.look()
    server.look(("old", "getattr", 3.0))
    assert server.loads == []


def test_a_burst_of_a_job_of_which_the_server_says_nothing_any_more_is_over() -> None:
    server = Server()
    usual(server)
    for _ in range(3):
        server.look(("4711", "getattr", 9000.0), ("4712", "getattr", 60.0))
    del server.counts["4711", "getattr"]
    for _ in range(round(FORGOTTEN_S / 15.0) + 4):
        server.look(("4712", "getattr", 60.0))
    assert server.loads[-1]["job"] == "4711"
    assert server.loads[-1]["until"] is not None


def test_a_target_is_a_part_of_its_file_system() -> None:
    targets = ("lfs-MDT0000", "scratch-2-OST00a3", "lfs-OST0001-osc-MDT0000", "nfsd", "s3")
    assert [filesystem_of(target) for target in targets] == ["lfs", "scratch-2", "lfs", "nfsd", "s3"]
