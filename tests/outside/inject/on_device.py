"""A script's gloo group becomes the test process group with NCCL's manners: calls return at once, a device works."""

import os
import sys
from typing import Any

#: The script's set-up is synchronous, as on a GPU; after so many calls the host only launches.
SETUP_CALLS = 12


def patch_torch() -> None:
    sys.path.append(os.environ["OUTSIDE_DEVICE"])
    import torch.distributed as dist

    from tests.device_backend import group, register, stream

    register()
    begin, issue = dist.init_process_group, group.DeviceGroup._issue
    calls = 0

    def init_process_group(backend: Any = None, *args: Any, **values: Any) -> None:
        begin("device", *args, **values)

    def count(self: Any, *args: Any, **values: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == SETUP_CALLS:
            stream().run_ahead()
        group.wait_for_futures()
        return issue(self, *args, **values)

    dist.init_process_group = init_process_group
    group.DeviceGroup._issue = count  # type: ignore[method-assign]
