"""One Grafana over its HTTP API: all that we ask of it, in one place. The API is the one under ``/api``, which all
versions from 9 to 13 serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from grafana_client import GrafanaApi, HeaderAuth, TokenAuth
from grafana_client.client import GrafanaClientError, GrafanaException

from ..telemetry.whole_numbers import whole_number

_T = TypeVar("_T")
TIMEOUT_S = 10.0
_NEWEST = 1_000
#: Of what is wrong with one request, not with the token or the Grafana.
_REFUSALS = frozenset({400, 409, 412, 413, 422})


class GrafanaTrouble(Exception):
    """In one line: what was asked, and what it answered."""


class GrafanaRefusal(GrafanaTrouble):
    """It will not take this, however often it is asked."""


class GrafanaSite:
    """url: as in a browser. token: of a service account that may edit."""

    def __init__(self, url: str, token: str, *, organization: int | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise GrafanaTrouble(f"{url}: is no address of a Grafana, as https://grafana.example")
        self.url = url.rstrip("/")
        self._api = GrafanaApi(
            TokenAuth(token) if token else HeaderAuth("X-WHICHRANK", "1"),
            host=parts.hostname,
            port=parts.port,
            url_path_prefix=parts.path.strip("/"),
            protocol=parts.scheme,
            timeout=TIMEOUT_S,
            user_agent="whichrank",
            organization_id=organization,
        )
        self._api.client.s.max_redirects = 0  # incidents and the token are for this address

    def health(self) -> Mapping[str, Any]:
        """Database and version, as /api/health tells them. Raises GrafanaTrouble, as all methods here that ask."""
        found: Mapping[str, Any] = self._asked("its health", lambda: self._api.client.GET("/health"))
        return found

    def major(self) -> int:
        """The first part of Grafana's version; where it does not say, the newest there could be.

        Raises GrafanaTrouble.
        """
        word = str(self.health().get("version") or "").partition(".")[0]
        major = whole_number(word)
        return _NEWEST if major is None else major

    # --- what is there; None where it is not ------------------------------------------------------------------------
    def folder(self, uid: str) -> Mapping[str, Any] | None:
        """The folder with this uid; None where there is none, or we may not see it.

        An Editor is told 403 of one that is not there, since rights are kept with it. Making it says the rest.
        """
        return self._found(f"folder {uid}", lambda: self._api.folder.get_folder(uid), absent=(403, 404))

    def dashboard(self, uid: str) -> Mapping[str, Any] | None:
        """The dashboard with this uid under ``dashboard``, with ``meta`` (its folder) beside it.

        None: there is none.
        """
        return self._found(f"dashboard {uid}", lambda: self._api.dashboard.get_dashboard(uid))

    def group(self, folder: str, name: str) -> Mapping[str, Any] | None:
        """A group of alert rules; None where there is none."""
        return self._found(f"rules {name}", lambda: self._api.alertingprovisioning.get_rule_group(folder, name))

    def source(self, uid: str) -> Mapping[str, Any] | None:
        """A data source; None where there is none."""
        return self._found(f"data source {uid}", lambda: self._api.datasource.get_datasource_by_uid(uid))

    # --- what is changed --------------------------------------------------------------------------------------------
    def make_folder(self, uid: str, title: str) -> None:
        """Makes a folder. Raises GrafanaTrouble where it is there already."""
        self._asked(f"to make folder {uid}", lambda: self._api.folder.create_folder(title, uid))

    def put_dashboard(self, dashboard: Mapping[str, Any], folder: str) -> None:
        """Makes the dashboard, or overwrites what has its uid. folder: uid."""
        message = {
            "dashboard": {**dashboard, "id": None},
            "folderUid": folder,
            "overwrite": True,
            "message": "whichrank",
        }
        self._asked(f"to put dashboard {dashboard['uid']}", lambda: self._api.dashboard.update_dashboard(message))

    def put_group(self, folder: str, name: str, group: Mapping[str, Any]) -> None:
        """Makes or overwrites a group of alert rules. folder: uid.

        Rules that are not there are made first: a group may only name known ones (tried on 9.4).
        """
        rules = self._api.alertingprovisioning
        there: list[Mapping[str, Any]] = self._asked("its rules", rules.get_alertrules_all)
        known = {each["uid"] for each in there}
        for rule in group["rules"]:
            if rule["uid"] not in known:
                make = partial(rules.create_alertrule, dict(rule), disable_provenance=True)
                self._asked(f"to make rule {rule['uid']}", make)
        put = partial(rules.update_rule_group, folder, name, dict(group), disable_provenance=True)
        self._asked(f"to put rules {name}", put)

    def make_source(self, source: Mapping[str, Any]) -> None:
        """Makes a data source. Raises GrafanaTrouble where it is there already."""
        self._asked(
            f"to make data source {source['uid']}", lambda: self._api.datasource.create_datasource(dict(source))
        )

    # --- annotations ------------------------------------------------------------------------------------------------
    def annotations(self, tags: list[str]) -> list[Mapping[str, Any]]:
        """The annotations that have all of these tags, at most a hundred."""
        find = self._api.annotations.get_annotation
        encoded = [quote(tag, safe="") for tag in tags]  # the client puts them into the address as they are
        found: list[Mapping[str, Any]] = self._asked("its annotations", lambda: find(tags=encoded, limit=100))
        return found

    def annotate(self, *, begin_ms: int, end_ms: int | None, tags: list[str], text: str) -> None:
        """Makes an annotation for all dashboards: a region in Unix ms; end_ms None: a point in time."""
        add = self._api.annotations.add_annotation
        self._asked("to annotate", lambda: add(time_from=begin_ms, time_to=end_ms, tags=tags, text=text))

    def change_annotation(self, number: int, *, begin_ms: int, end_ms: int | None, tags: list[str], text: str) -> None:
        """Changes the annotation with this number. Times in Unix ms.

        All of it is sent again: a part that is left out would be wiped.
        """
        update = self._api.annotations.update_annotation
        ask = lambda: update(number, time_from=begin_ms, time_to=end_ms, tags=tags, text=text)  # noqa: E731
        self._asked(f"to change annotation {number}", ask)

    def _found(
        self, what: str, ask: Callable[[], Mapping[str, Any]], *, absent: tuple[int, ...] = (404,)
    ) -> Mapping[str, Any] | None:
        try:
            return self._asked(what, ask)
        except GrafanaTrouble as trouble:
            if isinstance(trouble.__cause__, GrafanaClientError) and trouble.__cause__.status_code in absent:
                return None
            raise

    def _asked(self, what: str, ask: Callable[[], _T]) -> _T:
        try:
            return ask()
        except GrafanaException as error:
            kind = GrafanaRefusal if error.status_code in _REFUSALS else GrafanaTrouble
            raise kind(f"{self.url}: asked for {what}, it answers {error.status_code}: {error.message}") from error
        except Exception as error:  # whatever the HTTP library calls it: no connection, no answer, no JSON
            why = " ".join(str(error).split())[:200]
            raise GrafanaTrouble(f"{self.url}: asked for {what}: {type(error).__name__}: {why}") from error
