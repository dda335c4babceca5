"""``whichrank respond``: reads incidents, and does what is advised where that is allowed, or says what it would do.

The main thread reads, decides and acts; it ends with SIGTERM after the act at hand. A dry run unless it is told to act.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator

from ...telemetry.response_outcomes import Outcome
from ..incident_feeds.feed_position import FeedPosition
from ..incident_feeds.feeds import Revisions
from ..incident_service.audit import AuditFile, AuditLine
from ..incident_service.reader import IncidentReader
from ..incident_service.service_pages import ServicePages
from ..incident_service.serving import EXIT_FAILED, EXIT_USAGE, FORGET_S, open_feed, serve
from ..run_folder.run_directory import INCIDENTS_FILE, Unusable
from ..settings.file_trust import what_is_wrong_here
from ..settings.settings import RespondOptions
from ..support.addresses import split_address
from ..support.ending import EndRequest
from ..support.health_server import PageServer
from ..support.stderr import say
from .action_executor import ActionExecutor
from .action_store import DRY, LIVE, ActionStore
from .breaker import Limits
from .hooks import Hook
from .hooks.kubernetes import Kubernetes
from .hooks.slurm import Commands, Slurm
from .hooks.webhook_hook import WebhookHook
from .planning.plan import Policy
from .respond_health import HUNG_S, RespondFigures, RespondHealth
from .telling import EventFeed

EXIT_BREAKER = 3
DEFAULT_PORT = 8462
#: One look at what has come.
LOOK_S = 0.5
LONGEST_PAUSE_S = 10.0
#: --once reads to the end that there is now, no longer.
READ_S = 120.0


def respond(options: RespondOptions, *, once: bool, as_json: bool) -> int:
    """Runs ``whichrank respond`` until SIGTERM, or once to the end of what is there.

    The exit status: 0; 1 an act failed (--once); 2 it cannot start; 3 it ends with an open breaker.
    """
    return serve(
        lambda parts: _Service(options, parts, once=once, as_json=as_json),
        "respond",
        options.respond_state,
        health=options.respond_health,
        once=once,
    )


class _Service:
    def __init__(self, options: RespondOptions, parts: contextlib.ExitStack, *, once: bool, as_json: bool) -> None:
        """Raises OSError, sqlite3.Error, Unusable, ValueError, KafkaTrouble."""
        self._options = options
        self._as_json = as_json
        self._settle_s = 0.0 if once else options.respond_settle_s
        source = options.respond_from
        if options.respond_act and source is not None and (wrong := what_is_wrong_here(source / INCIDENTS_FILE)):
            raise Unusable(f"{wrong}; what it says would be done as user {os.geteuid()}")
        hooks = make_hooks(options)
        mode = LIVE if options.respond_act else DRY
        self._store = ActionStore(options.respond_state, mode)
        parts.callback(self._store.close)
        audit = AuditFile(options.respond_state)
        parts.callback(audit.close)
        self._feed, client = open_feed(options, options.respond_from, self._store.position(), "respond")
        parts.callback(self._feed.close)
        self._events = None if client is None else EventFeed(client, options.respond_cluster)
        self._reader = IncidentReader(self._feed, self._take, look_s=LOOK_S, longest_pause_s=LONGEST_PAUSE_S)
        if self._events is not None:
            parts.callback(self._events.close)
        self._executor = ActionExecutor(
            self._store,
            audit,
            hooks,
            Policy(
                actions=options.actions,
                scopes=options.scopes,
                confidence=options.respond_confidence,
                max_age_s=options.respond_max_age_s,
                hooks={name: hook.can for name, hook in hooks.items()},
            ),
            Limits(
                acts_per_hour=options.respond_acts_per_hour,
                nodes_per_hour=options.respond_nodes_per_hour,
                nodes_share=options.respond_nodes_share,
                cluster_nodes=options.respond_cluster_nodes,
            ),
            undo=options.respond_undo,
            drain_expires_s=options.respond_drain_expires_s,
            tell=self._report,
        )
        self._is_audit_full = False
        self._forgotten_s = 0.0
        self._health = self._look()
        what = "acts" if options.respond_act else "says what it would do (dry run; --act acts)"
        say(f"reads {self._feed.where}, {what}, by {', '.join(hooks) or 'no hook'}; audit: {audit.path}")

    def run(self, ending: EndRequest) -> int:
        """Until SIGTERM."""
        self._start()
        self._reader.run(ending, self._turn)
        return self._end()

    def page_server(self, address: str) -> PageServer:
        """See ``IncidentService``."""
        host, port = split_address(address, DEFAULT_PORT)
        return ServicePages(host, port, self.health, RespondFigures(self.health), hung_s=HUNG_S)

    def _take(self, revisions: Revisions, position: FeedPosition) -> None:
        self._store.take(revisions, position, time.time(), self._settle_s)

    def run_once(self, ending: EndRequest) -> int:
        """To the end of what is there now; advice need not have stood for a while."""
        self._start()
        until = time.monotonic() + READ_S
        while not ending.asked:
            if not self._reader.read() or (not self._feed.is_caught_up and time.monotonic() > until):
                say(f"{self._feed.where} was not read to its end; nothing is done")
                return EXIT_USAGE
            if self._feed.is_caught_up:
                self._turn()
                break
        failed = sum(
            count for (outcome, _, _), count in self._executor.outcomes.items() if outcome == Outcome.FAILED.value
        )
        return self._end() or (EXIT_FAILED if failed or self._is_audit_full else 0)

    def health(self) -> RespondHealth:
        """From the thread of the server: what the last turn left."""
        return self._health

    def _start(self) -> None:
        if (why := self._store.breaker().why) is not None:
            say(f"the breaker is open ({why}); nothing is done until: whichrank respond reset-breaker")
        with self._writing():
            self._executor.begin(time.time())

    def _turn(self) -> bool:
        """True: it can go on."""
        now = time.time()
        # What an old life has not read yet may say that an incident is over: nothing is done before all is read.
        if self._feed.is_caught_up:
            with self._writing():
                self._executor.turn(now)
        if self._events is not None:
            self._events.turn()
        if time.monotonic() - self._forgotten_s > FORGET_S:
            self._store.forget(now)
            self._forgotten_s = time.monotonic()
        self._health = self._look()
        return True

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """An audit file that takes nothing stops all acts; what waits goes on waiting."""
        try:
            yield
        except OSError as error:
            if not self._is_audit_full:
                say(f"the audit file cannot be written ({error.strerror or error}): nothing is done until it can")
            self._is_audit_full = True
        else:
            self._is_audit_full = False

    def _end(self) -> int:
        if (why := self._store.breaker().why) is not None:
            say(f"ends with an open breaker: {why}")
            return EXIT_BREAKER
        say("ends")
        return 0

    def _report(self, told: AuditLine) -> None:
        prefix = "dry run: " if told.mode == DRY else ""
        if self._as_json:
            sys.stdout.write(json.dumps(told.written()) + "\n")
            sys.stdout.flush()
        else:
            say(f"{prefix}{told.text}")
        if self._events is not None:
            self._events.tell(told)
            self._events.turn()  # a turn with many acts may be long

    def _look(self) -> RespondHealth:
        now = time.time()
        trouble = "the audit file cannot be written" if self._is_audit_full else self._reader.trouble
        return RespondHealth(
            mode=self._store.mode,
            turned_s=time.monotonic(),
            caught_up=self._feed.is_caught_up,
            trouble=trouble,
            breaker=self._store.breaker().why,
            nodes_out=len(self._store.nodes_out(now)),
            waiting=self._store.waiting(),
            events_dropped=self._events.dropped if self._events is not None else 0,
            unreadable=self._feed.unreadable,
            outcomes=dict(self._executor.outcomes),
            refusals=dict(self._executor.refusals),
        )


def make_hooks(options: RespondOptions) -> dict[str, Hook]:
    """The hooks of ``respond_hooks``, by name, in its order. Raises ValueError for settings that one cannot use."""
    hooks: dict[str, Hook] = {}
    for name in options.hooks:
        if name == WebhookHook.name:
            hooks[name] = WebhookHook(
                options.respond_webhook_url,
                options.webhook_secret(),
                tries=options.respond_webhook_tries,
                timeout_s=options.respond_webhook_timeout_s,
            )
        elif name == Slurm.name:
            commands = Commands(
                drain=options.respond_slurm_drain,
                undrain=options.respond_slurm_undrain,
                requeue=options.respond_slurm_requeue,
                show=options.respond_slurm_show,
                show_job=options.respond_slurm_show_job,
                hold=options.respond_slurm_hold,
                exclude=options.respond_slurm_exclude,
                release=options.respond_slurm_release,
            )
            hooks[name] = Slurm(commands)
        elif name == Kubernetes.name:
            hooks[name] = Kubernetes(
                options.respond_kubernetes_api,
                options.respond_kubernetes_token,
                options.respond_kubernetes_ca,
                options.respond_kubernetes_job,
            )
    return hooks
