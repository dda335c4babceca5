"""``python tests/scenarios/run.py``: the scenarios as a plain script, from anywhere."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.scenarios.main import main

sys.exit(main())
