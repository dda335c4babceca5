"""Bytes that ports carried, through wraps and resets."""

from __future__ import annotations

from whichrank.diagnosis.counters.sample import Layer, NodeSample, PortSample
from whichrank.diagnosis.counters.traffic import MAX_PORTS, NodeTraffic, Traffic


def test_rdma_counts_words_of_four_bytes() -> None:
    traffic = Traffic()
    for value in (1000, 1500, 1700):
        traffic.take({"port_xmit_data": value, "port_rcv_data": 2 * value})
    assert (traffic.sent_bytes, traffic.received_bytes) == (2800, 5600)


def test_a_wrap_of_32_bits_goes_on_and_a_reset_begins_anew() -> None:
    traffic = Traffic()
    for value in (2**32 - 100, 50, 70, 10):
        traffic.take({"tx_bytes": value})
    assert traffic.sent_bytes == 150 + 20 + 10


def test_what_cannot_be_read_is_left_out() -> None:
    traffic = Traffic()
    for value in (10, None, 30):
        traffic.take({"rx_bytes": value})
    assert (traffic.sent_bytes, traffic.received_bytes) == (0, 20)


def test_a_node_is_bounded() -> None:
    node = NodeTraffic()
    ports = tuple(PortSample(device=f"eth{at}", layer=Layer.NETDEV) for at in range(MAX_PORTS + 5))
    node.take(NodeSample(t_s=0.0, ports=ports))
    assert len(node.ports) == MAX_PORTS
