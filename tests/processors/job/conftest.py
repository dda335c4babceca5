"""Makes the synthetic job importable beside the tests: there are no packages under tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
