"""Runs of minutes through all operators, for ``make test-long``: continuous integration has an hour for everything."""

from __future__ import annotations

import os

import pytest

LONG = pytest.mark.deselect_if(not os.environ.get("LONG_TESTS"))
