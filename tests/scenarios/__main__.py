"""``python -m tests.scenarios`` in the repository's root."""

import sys

from .main import main

sys.exit(main())
