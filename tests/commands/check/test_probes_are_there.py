"""Each probe is a module that can be imported by its name: a child process does, and would say only UNKNOWN."""

from __future__ import annotations

from importlib import import_module

import pytest

from whichrank.commands.check.probes import PROBES


@pytest.mark.parametrize("module", [probe.module for probe in PROBES])
def test_a_probe_is_there(module: str) -> None:
    assert callable(import_module(f"whichrank.commands.check.{module}").check)
