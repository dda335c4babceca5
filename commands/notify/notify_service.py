"""``whichrank notify``: reads incidents and tells people, each receiver by a thread of its own.

The main thread reads and decides; it ends with SIGTERM after the tries at hand. What is told, and to whom, is in the
modules beside this one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from ..incident_feeds.feed_position import FeedPosition
from ..incident_feeds.feeds import Revisions
from ..incident_service.reader import IncidentReader
from ..incident_service.service_pages import ServicePages
from ..incident_service.serving import EXIT_FAILED, EXIT_USAGE, FORGET_S, listen, open_feed, serve
from ..settings.notify_options import NotifyOptions, ReceiverOptions
from ..support.addresses import split_address
from ..support.ending import EndRequest
from ..support.health_server import PageServer
from ..support.stderr import say
from .delivery_planner import DeliveryPlanner
from .delivery_store import DeliveryStore
from .messages.notices import AlertState, test_notice
from .messages.routes import DEFAULT_ROUTES, Routing
from .notify_health import HUNG_S, NotifyFigures, NotifyHealth, ReceiverHealth
from .receivers import NO_REFERENCE, DeliveryContext, DeliveryOutcome, Receiver
from .receivers.alertmanager import Alertmanager
from .receivers.http import Http
from .receivers.pagerduty import PagerDuty
from .receivers.slack import Slack
from .receivers.webhook import WebhookReceiver
from .sender import NoticeSender, ReceiverPolicy

DEFAULT_PORT = 8463
#: One look at what has come.
LOOK_S = 0.2
LONGEST_PAUSE_S = 5.0
#: --once reads and tells for so long.
ONCE_S = 120.0
#: A try at the end is waited for.
_LAST_TRY_S = 10.0


def notify(options: NotifyOptions, *, once: bool) -> int:
    """Runs ``whichrank notify`` until SIGTERM, or once to the end of what is there.

    The exit status: 0; 1 not everything could be told (--once), or its state was lost; 2 it cannot start.
    """
    return serve(
        lambda parts: _Service(options, parts),
        "notify",
        options.notify_state,
        health=options.notify_health,
        once=once,
    )


def send_test(options: NotifyOptions, name: str) -> int:
    """Sends one receiver a notice that is marked as a test, and then that it is over.

    The exit status: 0; 1 it was not taken; 2 there is no such receiver, or it cannot be made.
    """
    listen()
    given = options.notify_receivers.get(name)
    if given is None:
        say(f"{name}: no receiver; there are {', '.join(options.notify_receivers) or 'none'} (notify_receivers)")
        return EXIT_USAGE
    try:
        receiver = make_receiver(name, given)
    except ValueError as error:
        say(str(error))
        return EXIT_USAGE
    now = time.time()
    reference = NO_REFERENCE
    for standing, told in ((AlertState.OPEN, None), (AlertState.CLOSED, AlertState.OPEN)):
        notice = test_notice(name, now, options.notify_cluster, standing)
        answer = receiver.send(notice, DeliveryContext(reference=reference, told=told))
        if answer.outcome is not DeliveryOutcome.TOLD:
            say(f"{name}: {answer.detail}")
            return EXIT_FAILED
        reference = answer.reference
    say(f"{name} has taken a test, {notice.key}, and that it is over")
    return 0


class _Service:
    def __init__(self, options: NotifyOptions, parts: contextlib.ExitStack) -> None:
        """Raises OSError, sqlite3.Error, Unusable, ValueError, KafkaTrouble."""
        receivers = {name: make_receiver(name, given) for name, given in options.notify_receivers.items()}
        if not receivers:
            raise ValueError("a receiver is needed: [notify_receivers.NAME] in the settings file (docs/notify.md)")
        self._store = DeliveryStore(options.notify_state)
        parts.callback(self._store.close)
        self._feed, _ = open_feed(options, options.notify_from, self._store.position(), "notify")
        parts.callback(self._feed.close)
        self._reader = IncidentReader(self._feed, self._take, look_s=LOOK_S, longest_pause_s=LONGEST_PAUSE_S)
        self._planner = DeliveryPlanner(self._store, routing_of(options), max_age_s=options.notify_max_age_s)
        self._senders = [
            NoticeSender(
                ReceiverPolicy(
                    name=name,
                    new_per_hour=options.notify_receivers[name].new_per_hour,
                    mark="shadow" if options.notify_receivers[name].shadow else "",
                    link=options.notify_link,
                    cluster=options.notify_cluster,
                ),
                receiver,
                self._store,
            )
            for name, receiver in receivers.items()
        ]
        self._is_sending = False
        self._forgotten_s = 0.0
        self._health = self._look()
        trial = " (a trial: shadow receivers only)" if options.notify_shadow else ""
        say(f"reads {self._feed.where}, tells {', '.join(receivers)}{trial}")

    def run(self, ending: EndRequest) -> int:
        """Until SIGTERM, or until a sender breaks."""
        if not self._reader.run(ending, self._turn_whole):
            return EXIT_FAILED
        self._end()
        say("ends")
        return 0

    def _turn_whole(self) -> bool:
        """False: a sender has broken."""
        self._turn()
        return not self._is_broken()

    def page_server(self, address: str) -> PageServer:
        """See ``IncidentService``."""
        host, port = split_address(address, DEFAULT_PORT)
        return ServicePages(host, port, self.health, NotifyFigures(self.health), hung_s=HUNG_S)

    def _take(self, revisions: Revisions, position: FeedPosition) -> None:
        self._store.take(revisions, position, time.time())

    def run_once(self, ending: EndRequest) -> int:
        """To the end of what is there now, until it is told."""
        until = time.monotonic() + ONCE_S
        while not ending.asked and time.monotonic() < until:
            if not self._reader.read():
                say(f"{self._feed.where} was not read to its end; nothing is told")
                return EXIT_USAGE
            self._turn()
            if self._is_broken():
                return EXIT_FAILED
            if self._feed.is_caught_up and not any(self._store.waiting_at(each.name) for each in self._senders):
                break
            ending.wait(LOOK_S)
        self._end()
        left = {each.name: self._store.waiting_at(each.name) for each in self._senders}
        refused = sum(each.figures.counts["refused"] for each in self._senders)
        for name, count in left.items():
            if count:
                say(f"{name}: {count} could not be told")
        for why, count in self._planner.passed_over.items():
            say(f"{count} told to nobody: {why}")
        return EXIT_FAILED if refused or any(left.values()) else 0

    def health(self) -> NotifyHealth:
        """From the thread of the server: what the last turn left."""
        return self._health

    def _turn(self) -> None:
        # What an old life has not read yet may say that an incident is over: nothing is told before all is read.
        if self._feed.is_caught_up:
            now = time.time()
            news = self._planner.turn(now, is_first=not self._is_sending and self._store.is_fresh())
            if not self._is_sending:
                self._is_sending = True
                self._store.begin_telling(now)
                for sender in self._senders:
                    sender.start()
            elif news:
                for sender in self._senders:
                    sender.wake()
        if time.monotonic() - self._forgotten_s > FORGET_S:
            self._store.forget(time.time())
            self._forgotten_s = time.monotonic()
        self._health = self._look()

    def _is_broken(self) -> bool:
        broken = next((sender for sender in self._senders if sender.broken is not None), None)
        if broken is not None:
            say(f"{broken.name}: {type(broken.broken).__name__}: {broken.broken}; ends, to be started again")
            self._end()
        return broken is not None

    def _end(self) -> None:
        until = time.monotonic() + _LAST_TRY_S
        for sender in self._senders:
            sender.end(max(0.0, until - time.monotonic()))

    def _look(self) -> NotifyHealth:
        now = time.monotonic()
        return NotifyHealth(
            turned_s=now,
            caught_up=self._feed.is_caught_up,
            trouble=self._reader.trouble,
            unreadable=self._feed.unreadable,
            passed_over=dict(self._planner.passed_over),
            receivers={
                sender.name: ReceiverHealth(
                    counts=dict(sender.figures.counts),
                    waiting=self._store.waiting_at(sender.name),
                    trouble=sender.figures.trouble,
                    failing_s=now - sender.figures.trouble_since_s,
                    last_delay_s=sender.figures.last_delay_s,
                )
                for sender in self._senders
            },
        )


def routing_of(options: NotifyOptions) -> Routing:
    """The table from severities, kinds and jobs to receivers, as the settings have it."""
    receivers = options.notify_receivers
    return Routing(
        severities={name: each.told_severities for name, each in receivers.items() if not each.shadow},
        shadows=tuple(name for name, each in receivers.items() if each.shadow),
        routes=options.notify_routes or DEFAULT_ROUTES,
        owners=options.notify_owners,
        operations=options.operations,
        is_trial=options.notify_shadow,
    )


def make_receiver(name: str, given: ReceiverOptions, clock: Callable[[], float] = time.time) -> Receiver:
    """The receiver of this name by its settings. Raises ValueError for a secret that is not there or is none."""
    http = Http(given.address, timeout_s=given.timeout_s, ca=given.ca)
    try:
        secret = given.secret()
        if given.kind == "pagerduty":
            return PagerDuty(http, secret)
        if given.kind == "slack":
            return Slack(http, secret, given.channel)
        if given.kind == "webhook":
            return WebhookReceiver(http, secret, clock=clock)
        if given.kind == "alertmanager":
            return Alertmanager(http, secret, lasts_s=given.lasts_s, clock=clock)
        raise ValueError(f"kind {given.kind!r} has no receiver")  # not another one's in its place
    except ValueError as error:
        raise ValueError(f"notify_receivers.{name}: {error}") from None
