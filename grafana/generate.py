"""``python -m whichrank.grafana.generate [--check]``: dashboards and rules as files, for those who mount them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from .boards import all_dashboards
from .elements.recordings import recorded
from .paging import contact_points, policies, templates
from .rules import grafana_rules, prometheus_rules

REPOSITORY = Path(__file__).parents[1]
FOLDER = Path(__file__).with_name("dashboards")
_MADE = "# Made by `make dashboards` from what stands in grafana/.\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes dashboards and rules that are not current, and deletes left-over ones; with --check only says so.

    The exit status is 1 where a check found something.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 where a file is not current")
    options = parser.parse_args(arguments)
    files = {path: text for path, text in all_files().items() if not path.is_file() or path.read_text("utf-8") != text}
    left_over = sorted(set(FOLDER.glob("*.json")) - set(all_files()))
    if options.check:
        for path in [*files, *left_over]:
            print(f"{path.relative_to(REPOSITORY)} is not what the code makes: make dashboards", file=sys.stderr)
        return 1 if files or left_over else 0
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in left_over:
        path.unlink()
    return 0


def all_files() -> Mapping[Path, str]:
    """The text of each file that is made, by its path."""
    made = {FOLDER / f"{dashboard.uid}.json": dashboard.text() for dashboard in all_dashboards()}
    made[REPOSITORY / "deploy" / "prometheus" / "rules.yml"] = _yaml(
        {"groups": [*recorded(), *prometheus_rules()["groups"]]}
    )
    made[REPOSITORY / "deploy" / "grafana" / "provisioning" / "alerting" / "whichrank.yaml"] = _yaml(grafana_rules())
    paging = {"contact-points": contact_points(), "policies": policies(), "templates": templates()}
    return made | {
        REPOSITORY / "deploy" / "grafana" / "paging" / f"{name}.yaml": _yaml(content)
        for name, content in paging.items()
    }


class _Dumper(yaml.SafeDumper):
    """As people write it: nothing by reference, text of several lines as it stands."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _yaml(content: Mapping[str, Any]) -> str:
    return _MADE + yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)


if __name__ == "__main__":
    sys.exit(main())
