"""``python tests/frameworks/run.py``, without a package installed for it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.frameworks.main import main

sys.exit(main())
