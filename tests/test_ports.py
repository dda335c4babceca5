"""Ports that tests listen at are nobody else's, however many workers there are."""

from __future__ import annotations

import itertools
import socket

import pytest

from tests.ports import LOWEST_PORT, PORTS_OF_WORKER, first_port, free_ports


def test_a_port_is_given_once_and_none_that_somebody_listens_at() -> None:
    given = free_ports(20)
    assert len(set(given)) == 20
    assert set(free_ports(20)).isdisjoint(given)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", given[0]))
        taken.listen()
        with pytest.raises(OSError, match="fewer than"):
            free_ports(PORTS_OF_WORKER)


def test_workers_have_ranges_of_their_own_below_those_of_the_kernel() -> None:
    firsts = sorted(first_port(worker, 32_768) for worker in range(64))
    assert all(second - first >= PORTS_OF_WORKER for first, second in itertools.pairwise(firsts))
    assert firsts[0] >= LOWEST_PORT
    assert firsts[-1] + PORTS_OF_WORKER <= 32_768


@pytest.mark.parametrize(("worker", "lowest_of_kernel"), [(500, 32_768), (0, 1024), (7, 1200)])
def test_too_many_workers_or_no_room_below_the_kernel_s_still_have_ports(worker: int, lowest_of_kernel: int) -> None:
    assert LOWEST_PORT <= first_port(worker, lowest_of_kernel) <= 65_535 - PORTS_OF_WORKER
