"""Writes /sys trees of network ports, in the shape in which kernels show them, and changes them between looks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

#: What a ConnectX-7 port counts at rest.
IB_COUNTERS = (
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
)
HW_COUNTERS = (
    "duplicate_request",
    "implied_nak_seq_err",
    "lifespan",
    "local_ack_timeout_err",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "req_cqe_error",
    "req_cqe_flush_error",
    "req_remote_access_errors",
    "req_remote_invalid_request",
    "resp_cqe_error",
    "resp_cqe_flush_error",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_slow_restart_trans",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "rx_atomic_requests",
    "rx_icrc_encapsulated",
    "rx_read_requests",
    "rx_write_requests",
)
STATISTICS = (
    "collisions",
    "multicast",
    "rx_bytes",
    "rx_crc_errors",
    "rx_dropped",
    "rx_errors",
    "rx_fifo_errors",
    "rx_frame_errors",
    "rx_length_errors",
    "rx_missed_errors",
    "rx_over_errors",
    "rx_packets",
    "tx_aborted_errors",
    "tx_bytes",
    "tx_carrier_errors",
    "tx_dropped",
    "tx_errors",
    "tx_fifo_errors",
    "tx_packets",
    "tx_window_errors",
)


def write(folder: Path, files: Mapping[str, object]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(f"{content}\n")


def pci_device(sys: Path, address: str, driver: str) -> Path:
    """/sys/devices/pci0000:00/ADDRESS with its driver, as the links of classes lead to it."""
    device = sys / "devices/pci0000:00" / address
    device.mkdir(parents=True, exist_ok=True)
    module = sys / "bus/pci/drivers" / driver
    module.mkdir(parents=True, exist_ok=True)
    if not (device / "driver").is_symlink():
        (device / "driver").symlink_to(module)
    return device


def infiniband_port(
    sys: Path,
    device: str = "mlx5_0",
    *,
    address: str = "0000:18:00.0",
    port: int = 1,
    rate: str = "400 Gb/sec (4X NDR)",
    state: str = "4: ACTIVE",
    phys_state: str = "5: LinkUp",
    link_layer: str = "InfiniBand",
    guid: str = "b83f:d203:00a1:0001",
    interface: str = "",
) -> Path:
    """The folder of the port."""
    folder = sys / "class/infiniband" / device
    folder.mkdir(parents=True, exist_ok=True)
    pci = pci_device(sys, address, "mlx5_core")
    if not (folder / "device").is_symlink():
        (folder / "device").symlink_to(pci)
    write(folder, {"fw_ver": "28.43.2566", "board_id": "MT_0000000838", "hca_type": "MT4129", "node_guid": guid})
    path = folder / "ports" / str(port)
    write(path, {"rate": rate, "state": state, "phys_state": phys_state, "link_layer": link_layer})
    write(path / "counters", dict.fromkeys(IB_COUNTERS, 0))
    write(path / "hw_counters", dict.fromkeys(HW_COUNTERS, 0))
    if interface:
        write(pci / "net" / interface, {"dev_port": port - 1})
    return path


def network_interface(
    sys: Path, name: str = "eth0", *, address: str = "0000:3b:00.0", driver: str = "mlx5_core", **files: object
) -> Path:
    """The folder of an interface with a device behind it; ``address`` "" for a virtual one."""
    folder = sys / "class/net" / name
    folder.mkdir(parents=True, exist_ok=True)
    if address and not (folder / "device").is_symlink():
        (folder / "device").symlink_to(pci_device(sys, address, driver))
    usual: dict[str, object] = {
        "operstate": "up",
        "carrier": 1,
        "carrier_changes": 2,
        "speed": 200_000,
        "mtu": 9000,
        "flags": "0x1003",
        "type": 1,
        "ifindex": 2,
    }
    write(folder, {**usual, **files})
    write(folder / "statistics", dict.fromkeys(STATISTICS, 0))
    return folder
