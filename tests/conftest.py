"""What holds for all tests: the caller's shell has no say in them, and the report says what was tested."""

from __future__ import annotations

import os
import platform
import signal
from importlib.util import find_spec

import hypothesis
import pytest

# How long an example takes depends on who else uses the machine.
hypothesis.settings.register_profile(
    "shared machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("shared machine")

#: Variables that would change what whichrank, the OpenTelemetry SDK or torch does.
FOREIGN_PREFIXES = ("WHICHRANK_", "OTEL_", "TORCHELASTIC_", "SLURM_")
FOREIGN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def pytest_configure(config: pytest.Config) -> None:
    for name in list(os.environ):
        if name.startswith(FOREIGN_PREFIXES) or name in FOREIGN:
            del os.environ[name]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background of a script: what our tests start would inherit it, and Ctrl-C could not be tested.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header(config: pytest.Config) -> str:
    torch = "no torch"
    if find_spec("torch") is not None:
        from importlib.metadata import version

        torch = f"torch {version('torch')}"
    recorder = "C recorder" if find_spec("whichrank.instrumentation._recorder") else "Python recorder only"
    return f"whichrank: {torch}, {recorder}, {os.cpu_count()} cores, {platform.platform()}"
