"""What runs on a rank before torch is imported: the configuration comes from a share, names are resolved.

Imported first by ``late_comer``. The fault may bite right here, before any observer of torch can see the process.
"""

from __future__ import annotations

import json
import os
import select
import time
from pathlib import Path

PLAN = json.loads(Path(os.environ["SCENARIO_PLAN"]).read_text())
RANK = int(os.environ["RANK"])


def read_configuration() -> None:
    if PLAN["point"] == "import" and RANK in PLAN["guilty"]:
        time.sleep(PLAN["options"].get("early_s", 0.0))  # the others are further by then
        folder = Path(PLAN["truth"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"rank-{RANK}.json").write_text(json.dumps({"pid": os.getpid()}))
        now = {"realtime": time.time(), "monotonic": time.monotonic(), "step": -1}
        (folder / f"onset-{RANK}.json").write_text(
            json.dumps({**now, "file": Path(__file__).name, "lines": [0, 10**9]})
        )
        if PLAN["fault"] == "throw":
            raise OSError(116, "Stale file handle", "/configuration.json")
        reader, _writer = os.pipe()
        parent = os.getppid()
        while os.getppid() == parent:  # a file server that does not answer
            select.select([reader], [], [], 60)


read_configuration()
