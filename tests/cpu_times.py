"""CPU seconds by test file: where the tests' time goes on a machine that others use as well.

    python -m pytest -p tests.cpu_times --cpu-times FILE ...

A test's own CPU time and that of the children it has waited for, set-up and tear-down included; with xdist of all
workers. FILE gets a line per test file, the most expensive first: seconds, tests, path.
"""

from __future__ import annotations

import json
import os
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

_SPENT: Counter[str] = Counter()
_TESTS: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", metavar="FILE", help="CPU seconds by test file, written there")


def _cpu_s() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, kinds))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = _cpu_s()
    yield
    name = item.nodeid.partition("::")[0]
    _SPENT[name] += _cpu_s() - before  # type: ignore[assignment]
    _TESTS[name] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    target = session.config.getoption("--cpu-times")
    if not target:
        return
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker:
        Path(f"{target}.{worker}").write_text(json.dumps([_SPENT, _TESTS]))
        return
    for part in Path(target).parent.glob(f"{Path(target).name}.gw*"):
        spent, tests = json.loads(part.read_text())
        _SPENT.update(spent)
        _TESTS.update(tests)
        part.unlink()
    lines = [f"{seconds:9.1f} {_TESTS[name]:6} {name}" for name, seconds in _SPENT.most_common()]
    total = f"{sum(_SPENT.values()):9.1f} {sum(_TESTS.values()):6} all"
    Path(target).write_text("\n".join([total, *lines]) + "\n")
