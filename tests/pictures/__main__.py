"""The pictures of the documents: ``python -m tests.pictures [--only NAME]``, or ``make pictures``.

Each comes from a real run on this machine: a job of four ranks under ``whichrank run`` on a pseudo-terminal, and what
is shown of it. ``road.svg`` is made from ``road.toml``. The report needs Chromium, and is left out where there is none.
Dashboards need a Grafana: ``python -m tests.real_grafana --grafana HOME --pictures DIR``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.commands.report.browser import chromium
from tests.pictures.made import FOLDER, MOST_BYTES, PICTURES, Runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=sorted(PICTURES), help="this picture; again for more")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where they go; default: docs/pictures")
    given = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory(prefix="whichrank-pictures-") as folder:
        runs = Runs(Path(folder))
        for name in given.only or PICTURES:
            if name.endswith(".png") and chromium() is None:
                print(f"{name}: NOT MADE, no Chromium here (.ci/browser installs it)")
                continue
            path = given.folder / name
            PICTURES[name](runs, path)
            bytes_ = path.stat().st_size
            failed |= bytes_ > MOST_BYTES
            print(f"{path.name}: {bytes_:,} bytes{' TOO LARGE' if bytes_ > MOST_BYTES else ''}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
