"""A process group with NCCL's manners, without a GPU: calls return at once, a device does the work in its own time.

``register()`` makes it known to torch as backend "device" (for CPU tensors, so that every script runs on it), then
``dist.init_process_group("device")``. A job begins synchronously, as model construction on a GPU does when values are
read back; after ``stream().run_ahead()`` the host only launches. Real memory of a device cannot be read without waiting
for it, memory of the host can: while the host runs ahead the results of collectives are therefore stand-ins (each
rank's own contribution), and what is real is order, time, numbers, time-outs and the connections between processes.
"""

from __future__ import annotations

from .group import Gone, register
from .recorder import FlightRecorder, recorder
from .stream import DeviceStream, Event, stream

__all__ = ["DeviceStream", "Event", "FlightRecorder", "Gone", "recorder", "register", "stream"]
