"""How a service that reads incidents starts and ends: what it cannot start with is one line and an exit status."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ...transport.kafka import make_client
from ...transport.kafka_client import Client, KafkaTrouble
from ..incident_feeds.feed_position import FeedPosition
from ..incident_feeds.feeds import Feed, FolderFeed, KafkaFeed
from ..run_folder.run_directory import Unusable
from ..settings.kafka_options import KafkaOptions
from ..support.ending import EndRequest
from ..support.health_server import PageServer
from ..support.stderr import SayHandler, say

EXIT_FAILED, EXIT_USAGE = 1, 2
#: Between looks for what has been over for long.
FORGET_S = 3600.0


class IncidentService(Protocol):
    """What ``serve`` runs: one of the two, until it is to end. Both return the exit status."""

    def run(self, ending: EndRequest) -> int:
        """Serves until SIGTERM; the exit status."""
        ...

    def run_once(self, ending: EndRequest) -> int:
        """Works to the end of what is there now; the exit status."""
        ...

    def page_server(self, address: str) -> PageServer:
        """A server of its health pages at HOST:PORT. Raises OSError when the address cannot be had."""
        ...


def serve(
    make: Callable[[contextlib.ExitStack], IncidentService], name: str, state: Path, *, health: str, once: bool
) -> int:
    """Makes a service and runs it, until SIGTERM or (once) to the end of what is there; the exit status.

    name: of the command. state: its folder. health: HOST:PORT of the pages, "" none. make: raises OSError,
    sqlite3.Error, Unusable, ValueError, KafkaTrouble for what it cannot start with; that is said in one line.
    """
    listen()
    ending = EndRequest()
    with contextlib.ExitStack() as parts:
        try:
            service = make(parts)
        except (Unusable, ValueError, KafkaTrouble) as error:
            say(str(error))
            return EXIT_USAGE
        except BlockingIOError:
            say(f"{state}: another whichrank {name} uses it")
            return EXIT_USAGE
        except OSError as error:
            say(f"{error.filename or state}: {error.strerror or error}")
            return EXIT_USAGE
        except sqlite3.Error as error:
            say(f"{state}: {error}")
            return EXIT_USAGE
        if health and not once:
            try:
                server = service.page_server(health)
            except OSError as error:
                say(f"health at {health}: {error.strerror or error}; choose another: {name}_health")
                return EXIT_USAGE
            parts.callback(server.close)
        return service.run_once(ending) if once else service.run(ending)


def open_feed(
    options: KafkaOptions, folder: Path | None, position: FeedPosition, name: str
) -> tuple[Feed, Client | None]:
    """A feed of the run's folder, or without one of the topic, with the client that reads it.

    name: of the service. Raises Unusable, KafkaTrouble.
    """
    if folder is not None:
        return FolderFeed(folder, position), None
    client = make_client(options.kafka_settings(client_id=f"whichrank-{name}"))
    return KafkaFeed(client, position, options.kafka), client


def listen() -> None:
    """Lets what parts of whichrank log be said to people, each line once."""
    logger = logging.getLogger("whichrank")
    logger.addHandler(SayHandler())
    logger.propagate = False
