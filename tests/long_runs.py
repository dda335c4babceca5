"""What only ``make test-long`` runs: continuous integration has an hour in all, so it runs one case of a kind."""

from __future__ import annotations

import os

import pytest

LONG = pytest.mark.deselect_if(not os.environ.get("LONG_TESTS"))
