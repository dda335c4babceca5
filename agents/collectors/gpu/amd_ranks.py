"""Which of AMD's GPUs a rank is on, where the driver does not say it: from what the rank's process was started with.

ROCr leaves of all GPUs what ROCR_VISIBLE_DEVICES names (numbers, or "GPU-" and the serial number). Of these HIP leaves
what HIP_VISIBLE_DEVICES names, or, where that is not set, CUDA_VISIBLE_DEVICES. Both count in HIP's order, which need
not be that of the PCI bus. Of what is left a rank takes the number LOCAL_RANK, or the only one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .driver import Gpu
from .ranks import DOUBTFUL, LIKELY, Placement, RankProcess, visible_devices

_ROCR, _HIP, _CUDA = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"


def place_amd_rank(process: RankProcess, gpus: Sequence[Gpu]) -> Placement | None:
    """The GPU that a rank uses by its environment alone, with how sure that is and what speaks against it.

    None: it sees no GPU, or fewer than its local rank asks for. gpus: of this node, by index.
    """
    in_order = sorted(gpus, key=lambda gpu: gpu.index if gpu.runtime_index is None else gpu.runtime_index)
    visible = [replace(gpu, uuid=gpu.runtime_name or gpu.uuid) for gpu in in_order]
    chosen = ""
    for variable in (_ROCR, _HIP if process.variables.get(_HIP) else _CUDA):
        text = process.variables.get(variable)
        # To ROCr an empty list is none; to HIP it is as good as not set.
        if text is None or (not text and variable != _ROCR):
            continue
        visible = [choice.gpu for choice in visible_devices(text, visible)]
        chosen = variable
    at = 0 if len(visible) == 1 else process.local_rank
    if at >= len(visible):
        return None
    doubts = [] if chosen else [f"none of {_ROCR}, {_HIP} and {_CUDA} is set"]
    if any(gpu.runtime_index is None for gpu in gpus):
        doubts.append("the order in which HIP counts is not known")
    return Placement(
        gpu=next(gpu for gpu in gpus if gpu.index == visible[at].index),
        mig="",
        method=chosen.lower() or "local_rank",
        certainty=DOUBTFUL if doubts else LIKELY,
        why="; ".join(doubts),
    )
