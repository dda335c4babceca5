"""Puts our folder, dashboards and rules into a Grafana that others use, too, and touches nothing else.

Ours is: what lies in our folder. A dashboard with one of our uids that somebody keeps in another folder is refused, and
so is a folder of our uid that has another title. The tree of policies, contact points, templates and data sources that
are there are never written.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from .desired import FOLDER_UID, Desired, holds, lines_of
from .rules import FOLDER
from .site import GrafanaSite, GrafanaTrouble


@dataclass(frozen=True, slots=True, kw_only=True)
class GrafanaChange:
    """what: "dashboard whichrank-job". is_new: it is not there yet. difference: unified, of what we speak of."""

    what: str
    is_new: bool
    difference: str
    make: Callable[[], None]


def changes(site: GrafanaSite, wanted: Desired) -> Iterator[GrafanaChange]:
    """What differs from what is wanted, in the order in which it has to be made; ``make`` of each makes it.

    Raises GrafanaTrouble, also where our uids belong to somebody else's folder or dashboards.
    """
    folder = site.folder(FOLDER_UID)
    if folder is None:
        yield _change(f"folder {FOLDER_UID}", None, {"title": FOLDER}, lambda: site.make_folder(FOLDER_UID, FOLDER))
    elif folder.get("title") != FOLDER:
        raise GrafanaTrouble(
            f"{site.url}: folder {FOLDER_UID} is called {folder.get('title')!r}, so it is somebody else's: move it"
        )
    for uid, source in wanted.sources.items():
        if site.source(uid) is None:
            yield _change(f"data source {uid}", None, source, partial(site.make_source, source))
    for uid, dashboard in wanted.dashboards.items():
        there = site.dashboard(uid)
        where = there["meta"].get("folderUid") if there is not None else FOLDER_UID
        if where != FOLDER_UID:
            raise GrafanaTrouble(
                f"{site.url}: dashboard {uid} lies in folder {where!r}, not in ours: move or delete it"
            )
        now = there["dashboard"] if there is not None else None
        wished = {name: value for name, value in dashboard.items() if name != "version"}
        if now is None or not holds(now, wished):
            yield _change(f"dashboard {uid}", now, wished, partial(site.put_dashboard, wished, FOLDER_UID))
    for name, group in wanted.groups.items():
        there = site.group(FOLDER_UID, name) if folder is not None else None
        if there is None or not there.get("rules") or not holds(there, group):
            yield _change(f"rules {name}", there, group, partial(site.put_group, FOLDER_UID, name, group))


def missing_sources(site: GrafanaSite, wanted: Desired) -> list[str]:
    """Uids of data sources that the dashboards ask, and that are neither there nor to be made; sorted."""
    asked = {
        target["datasource"]["uid"]
        for dashboard in wanted.dashboards.values()
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }
    return sorted(uid for uid in asked - set(wanted.sources) if site.source(uid) is None)


def _change(
    what: str, there: Mapping[str, Any] | None, wanted: Mapping[str, Any], make: Callable[[], None]
) -> GrafanaChange:
    before, after = lines_of(there, wanted), lines_of(wanted, wanted)
    difference = "\n".join(difflib.unified_diff(before, after, "there", "wanted", lineterm="", n=1))
    return GrafanaChange(what=what, is_new=there is None, difference=difference, make=make)
