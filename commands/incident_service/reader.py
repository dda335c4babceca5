"""The loop of a service that reads incidents, until SIGTERM: what does not answer is said once, and tried again."""

from __future__ import annotations

from collections.abc import Callable

from ...transport.kafka_client import KafkaTrouble
from ..incident_feeds.feed_position import BEGINNING, FeedPosition
from ..incident_feeds.feeds import Feed, FolderFeed, Revisions
from ..run_folder.run_directory import Unusable
from ..support.ending import EndRequest
from ..support.stderr import say


class IncidentReader:
    """trouble: why the feed does not answer; None: it does. take: keeps revisions, and the position behind them."""

    def __init__(
        self, feed: Feed, take: Callable[[Revisions, FeedPosition], None], *, look_s: float, longest_pause_s: float
    ) -> None:
        """look_s: one look waits so long for something. longest_pause_s: between tries while it does not answer."""
        self.feed = feed
        self.trouble: str | None = None
        self._take = take
        self._look_s, self._longest_pause_s = look_s, longest_pause_s
        self._taken = BEGINNING
        self._said = ""

    def read(self) -> bool:
        """Reads once, and hands what has come to ``take``. False: what is read does not answer, which is said once."""
        try:
            revisions = self.feed.read(self._look_s)
        except (KafkaTrouble, Unusable) as error:
            self.trouble = str(error).splitlines()[0]
            if self.trouble != self._said:
                self._said = self.trouble
                say(f"{self.trouble}; trying again")
            return False
        self.trouble, self._said = None, ""
        if revisions or self.feed.position != self._taken:
            self._taken = self.feed.position
            self._take(revisions, self._taken)
        return True

    def run(self, ending: EndRequest, turn: Callable[[], bool]) -> bool:
        """Reads and turns until it is to end. False: ``turn`` said before that it cannot go on."""
        pause_s = self._look_s
        while not ending.asked:
            read = self.read()
            pause_s = self._look_s if read else min(self._longest_pause_s, pause_s * 2.0)
            if not turn():
                return False
            # A topic is waited for by the look itself.
            ending.wait(pause_s if not read or isinstance(self.feed, FolderFeed) else 0.0)
        return True
