"""What ``whichrank grafana`` does: the difference is shown, then made; files are copied from the package."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import typer

from ...telemetry.missing_packages import in_words
from ..run_folder.run_directory import Unusable

_PACKAGE = Path(__file__).parents[2]
#: From the package -> in the exported folder.
_EXPORTED = {
    "grafana/dashboards": "dashboards",
    "deploy/grafana/provisioning": "provisioning",
    "deploy/grafana/paging": "paging",
    "deploy/prometheus/rules.yml": "prometheus/rules.yml",
}


def synchronise(
    url: str, *, token: str, organization: int | None, use: Iterable[str], make: Iterable[str], dry_run: bool
) -> None:
    """Shows how a Grafana differs from what is wanted, and unless ``dry_run`` makes it so. Raises Unusable.

    use: TYPE=UID of data sources that are there; make: TYPE=URL of those to be made.
    """
    try:
        from ...grafana.desired import INSTEAD, TYPES, desired, for_grafana
        from ...grafana.site import GrafanaSite, GrafanaTrouble
        from ...grafana.sync import changes, missing_sources
    except ModuleNotFoundError as error:
        raise Unusable(in_words(error, "grafana")) from error
    uids, urls = _pairs("--use", use, TYPES), _pairs("--make", make, TYPES)
    for other, ours in INSTEAD.items():
        if {other, ours} <= {*uids, *urls}:
            raise Unusable(f"both {other} and {ours} are named: panels can ask one of them")
    wanted = desired(uids, urls)
    try:
        site = GrafanaSite(url, token, organization=organization)
        wanted = for_grafana(wanted, site.major())
        missing = missing_sources(site, wanted)
        count = 0
        for change in changes(site, wanted):
            count += 1
            typer.echo(f"{'+' if change.is_new else '~'} {change.what}")
            if dry_run and not change.is_new:
                typer.echo(change.difference)
            if not dry_run:
                change.make()
    except GrafanaTrouble as trouble:
        raise Unusable(str(trouble)) from trouble
    if "loki" in {*uids, *urls}:
        typer.echo("whichrank: panels of events ask Loki in LogQL: no test runs these queries", err=True)
    for uid in missing:
        typer.echo(
            f"whichrank: {url} has no data source {uid}: panels that ask it stay empty; name yours with --use",
            err=True,
        )
    verb = "would be" if dry_run else "were"
    typer.echo(f"{count} {verb} changed" if count else "all is as it should be")


def export(folder: Path, *, force: bool) -> None:
    """Writes the provisioning files into a folder. force: also over files that are there and differ.

    Raises Unusable.
    """
    files: dict[Path, bytes] = {}
    for source, target in _EXPORTED.items():
        path = _PACKAGE / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                files[folder / target / file.relative_to(path) if path.is_dir() else folder / target] = (
                    file.read_bytes()
                )
    there = [path for path, content in files.items() if path.exists() and path.read_bytes() != content]
    if there and not force:
        raise Unusable(f"{there[0]}: is there already, and other than ours: give an empty folder, or --force")
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        raise Unusable(f"{error.filename}: {error.strerror}: give a folder that can be written") from error
    typer.echo(f"{len(files)} files in {folder}: mount dashboards at the path that provisioning/dashboards names")


def _pairs(flag: str, pairs: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not value or name not in known:
            raise Unusable(f"{flag} {pair}: give TYPE=VALUE with one of {', '.join(known)}")
        found[name] = value
    return found
