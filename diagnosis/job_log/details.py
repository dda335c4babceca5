"""What single statements tell besides their class: devices, the port of their node, the peer that was waited for."""

from __future__ import annotations

import re

from ..alike import asked_once

#: NCCL's InfiniBand lines name the device that they used: "NET/IB : mlx5_2:1 Got async event", "... hca mlx5_2".
LOCAL_PORT = re.compile(
    r"\b(?P<device>(?:mlx[45]|bnxt_re|irdma|hns|erdma|qedr|efa|rdmap\d+s|rocep\d+s|ibp\d+s)_?\d+(?:f\d+)?)(?::(?P<port>\d{1,2})\b)?"
)
#: Transformer Engine's user buffers, where they name ranks of the whole job; "SM 3 [5]" is a place in the group only.
EXPECTED_PEER = re.compile(
    r"\bglobal src ?[:=] ?(?P<rank>\d{1,6})|\b(?:from|peer)(?: global)? ?rank ?[:=]? ?(?P<named>\d{1,6})"
)

XID_DEVICE = re.compile(
    r"(?:PCI:|GPU at |GPU )(?P<device>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
)
PCI_DEVICE = re.compile(r"\b(?P<device>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\b")
GPU_NUMBER = re.compile(
    r"\b(?:GPU|NPU|HPU|XPU|TPU|HIP|device|cuda:|hl|card|"
    r"accel)(?: ?id)?[ =:#]{0,2}(?P<device>\d{1,2})\b(?! ?(?:GPUs?|devices|MiB|GiB|MB|GB))",
    re.IGNORECASE,
)


def devices_in(text: str) -> tuple[str, ...]:
    """Names of devices in a text, an address before a number ("GPU3: 0000:4E:00.0" has both), a network port last."""
    if not _may_name_a_device(text):
        return ()
    found = (pattern.search(text) for pattern in (XID_DEVICE, PCI_DEVICE, GPU_NUMBER))
    names = [match["device"] for match in found if match]
    port = local_port(text)
    return tuple(dict.fromkeys([*names, port] if port else names))


#: With any digit where a pattern wants one of some: then the answer is one for all digits.
LOOSER = tuple(
    re.compile(re.sub(r"\[(?:0-7|45)\]", r"\\d", pattern.pattern), pattern.flags)
    for pattern in (XID_DEVICE, PCI_DEVICE, GPU_NUMBER, LOCAL_PORT)
)


@asked_once
def _may_name_a_device(text: str) -> bool:
    return any(pattern.search(text) is not None for pattern in LOOSER)


def local_port(text: str) -> str:
    """The node's own RDMA port in a text, as mlx5_2:1, or mlx5_2 where the port is not told; "" if it names none."""
    match = LOCAL_PORT.search(text)
    if match is None:
        return ""
    return f"{match['device']}:{match['port']}" if match["port"] else match["device"]


def expected_peer(text: str) -> int | None:
    """The rank that should have written, in the text of a user buffer's time-out; None if it names none."""
    match = EXPECTED_PEER.search(text)
    return int(match["rank"] or match["named"]) if match else None
