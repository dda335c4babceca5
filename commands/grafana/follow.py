"""``whichrank grafana annotate``: reads incidents and keeps a Grafana's annotations as they stand, until SIGTERM."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from ...telemetry.missing_packages import in_words
from ...transport.kafka import make_client
from ...transport.kafka_client import KafkaTrouble
from ..incident_feeds.feed_position import BEGINNING, FeedPosition, read_position, write_position
from ..incident_feeds.feeds import Feed, FolderFeed, KafkaFeed
from ..run_folder.run_directory import Unusable
from ..settings.annotate_options import AnnotateOptions
from ..support.ending import EndRequest
from ..support.stderr import SayHandler, say

try:
    from ...grafana.site import GrafanaSite, GrafanaTrouble
    from .annotations import Annotations
except ModuleNotFoundError as error:
    raise Unusable(in_words(error, "grafana")) from error

EXIT_FAILED = 1
STATE_FILE = "annotate.json"
LOOK_S = 0.2
#: What does not answer is asked again after 1, 2, 4 … seconds.
LONGEST_PAUSE_S = 60.0
#: Annotated between two looks at the topic: each asks Grafana twice.
AT_A_TIME = 50
#: --once tries for so long.
ONCE_S = 60.0


def follow(options: AnnotateOptions, *, once: bool) -> int:
    """Reads incidents and keeps annotations as they stand, until SIGTERM; once: to the end of what is there.

    The exit status. Raises Unusable where it cannot start.
    """
    logger = logging.getLogger("whichrank")
    logger.addHandler(SayHandler())
    logger.propagate = False
    ending = EndRequest()
    try:
        site = GrafanaSite(options.grafana_url, options.token(), organization=options.grafana_organization)
        options.annotate_state.mkdir(parents=True, exist_ok=True)
        position = _Position(options.annotate_state / STATE_FILE)
        feed = _feed(options, position.known)
    except (GrafanaTrouble, KafkaTrouble, ValueError) as error:
        raise Unusable(str(error)) from error
    except OSError as error:
        raise Unusable(f"{error.filename}: {error.strerror}: give a folder that can be written: --state") from error
    try:
        annotations = Annotations(site, max_age_s=options.annotate_max_age_s)
        say(f"reads {feed.where}, annotates at {site.url}")
        return _loop(feed, annotations, position, ending, once=once)
    except OSError as error:
        raise Unusable(f"{error.filename}: {error.strerror}: its state cannot be kept") from error
    finally:
        feed.close()


def _loop(feed: Feed, annotations: Annotations, position: _Position, ending: EndRequest, *, once: bool) -> int:
    until = time.monotonic() + ONCE_S
    pause_s, said, trouble = 0.0, "", ""
    while not ending.asked and not (once and time.monotonic() > until):
        try:
            annotations.take(feed.read(LOOK_S), time.time())
            annotations.put(AT_A_TIME)
            pause_s, trouble = 0.0, ""
        except (GrafanaTrouble, KafkaTrouble, Unusable) as error:
            trouble = str(error).splitlines()[0]
            if trouble != said:
                say(f"{trouble}; trying again ({len(annotations)} wait)")
                said = trouble
            pause_s = min(LONGEST_PAUSE_S, max(1.0, pause_s * 2.0))
        if not annotations:
            # Only now: what waits is read again by the next life.
            position.keep(feed.position)
            if once and feed.is_caught_up and not trouble:
                break
        if not trouble and said:
            say(f"all answers again ({len(annotations)} wait)")
            said = ""
        ending.wait(pause_s or (LOOK_S if isinstance(feed, FolderFeed) and not annotations else 0.0))
    counts = dict(annotations.counts) | ({"unreadable": feed.unreadable} if feed.unreadable else {})
    say(", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "there was nothing to annotate")
    if annotations.refusal:
        say(f"the last that was refused: {annotations.refusal}")
    lost = annotations.counts["refused"] + annotations.counts["dropped"] + len(annotations)
    return EXIT_FAILED if once and (lost or trouble) else 0


def _feed(options: AnnotateOptions, position: FeedPosition) -> Feed:
    """Raises Unusable, KafkaTrouble."""
    if options.annotate_from is not None:
        return FolderFeed(options.annotate_from, position)
    client = make_client(options.kafka_settings(client_id="whichrank-annotate"))
    return KafkaFeed(client, position, options.kafka)


class _Position:
    """How far was read, in a file. One that is damaged counts as none: what is read twice is annotated once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.known = read_position(path.read_bytes())
        except OSError:
            self.known = BEGINNING

    def keep(self, position: FeedPosition) -> None:
        """Raises OSError."""
        if position == self.known:
            return
        new = self._path.with_suffix(".new")
        new.write_text(write_position(position))
        os.replace(new, self._path)
        self.known = position
