"""What holds for all tests: the caller's shell has no say in them, and the report says what was tested."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Generator
from importlib.util import find_spec

import hypothesis
import pytest

from tests.slow_files import SLOW_FILES

# How long an example takes depends on who else uses the machine. Each run draws others, so that half of them will do.
hypothesis.settings.register_profile(
    "shared machine",
    deadline=None,
    max_examples=100 if os.environ.get("LONG_TESTS") else 50,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("shared machine")

#: Variables that would change what whichrank, the OpenTelemetry SDK or torch does.
FOREIGN_PREFIXES = ("WHICHRANK_", "OTEL_", "TORCHELASTIC_", "SLURM_")
FOREIGN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


#: What a command that runs in the tests' own process may set for itself, and leaves behind.
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

#: What a machine may lack without its tests being worth less (--strict-skips).
EXCUSES = (
    "no GPU",
    "no image registry",
    "no Slurm",
    "no Kubernetes",
    # What a container or an unprivileged user is not given: the kernel's log, FUSE mounts, groups of processes.
    "/dev/kmsg",
    "the kernel log is not",
    "no FUSE",
    "a freezer of version 1",
    "makes a control group",
    "no memory controller of version 1",
    "are one file system here",
    "no log of this machine",
    # Other people's programs, which are installed only for a comparison.
    "cannot be installed",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--strict-skips",
        action="store_true",
        help=f"fail on skipped tests whose reason is none of: {', '.join(EXCUSES)}",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What this version of torch cannot do is not a test here (marker ``deselect_if``), rather than a skipped one.

    The slowest files come first.
    """
    out = [item for item in items if any(mark.args[0] for mark in item.iter_markers("deselect_if"))]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]
    first = {str(config.rootpath / file): place for place, file in enumerate(SLOW_FILES)}
    items.sort(key=lambda item: first.get(str(item.path), len(first)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A handler of a signal ends with the test that set it: what later tests fork would inherit it, and not end."""
    before = {number: signal.getsignal(number) for number in HANDLED}
    result = yield
    for number, handler in before.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--strict-skips") and unexcused(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--strict-skips"):
        for line in unexcused(config):
            terminalreporter.write_line(f"SKIPPED WITHOUT EXCUSE {line}", red=True)


def unexcused(config: pytest.Config) -> list[str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # one of several workers: the process that started them hears of all skips
        return []
    skipped = [f"{report.nodeid}: {report.longrepr[2]}" for report in reporter.stats.get("skipped", ())]
    return [line for line in skipped if not any(excuse in line for excuse in EXCUSES)]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "deselect_if(condition): not a test here, when this version of torch cannot do it"
    )
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
