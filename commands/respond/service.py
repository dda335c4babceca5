"""``whichrank respond``: reads incidents, and does what is advised where that is allowed, or says what it would do.

The main thread reads, decides and acts; it ends with SIGTERM after the act at hand. A dry run unless it is told to act.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import sys
import time
from collections.abc import Mapping
from typing import Any

from ...telemetry.vocabulary import Outcome
from ...transport.kafka import make_client
from ...transport.kafka_client import KafkaTrouble
from ..incident_feeds.feeds import Feed, FolderFeed, KafkaFeed
from ..run_folder.run_directory import Unusable
from ..settings.settings import RespondOptions
from ..support.addresses import split_address
from ..support.ending import Ending
from ..support.stderr import SayHandler, say
from .audit import AuditFile
from .breaker import Limits
from .desk import Desk
from .health import RespondHealth, RespondServer
from .hooks import Hook
from .hooks.kubernetes import Kubernetes
from .hooks.slurm import Commands, Slurm
from .hooks.webhook import Webhook
from .ledger import DRY, LIVE, Ledger
from .planning.plan import Policy
from .telling import EventFeed

EXIT_FAILED, EXIT_USAGE, EXIT_BREAKER = 1, 2, 3
DEFAULT_PORT = 8462
#: One look at what has come.
LOOK_S = 0.5
LONGEST_PAUSE_S = 10.0
#: --once reads to the end that there is now, no longer.
READ_S = 120.0
FORGET_S = 3600.0


def respond(options: RespondOptions, *, once: bool, as_json: bool) -> int:
    """The exit status: 0; 1 an act failed (--once); 2 it cannot start; 3 it ends with an open breaker."""
    logger = logging.getLogger("whichrank")
    logger.addHandler(SayHandler())
    logger.propagate = False
    ending = Ending()
    with contextlib.ExitStack() as parts:
        try:
            service = _Service(options, parts, once=once, as_json=as_json)
        except (Unusable, ValueError, KafkaTrouble) as error:
            say(str(error))
            return EXIT_USAGE
        except BlockingIOError:
            say(f"{options.respond_state}: another whichrank respond uses it")
            return EXIT_USAGE
        except OSError as error:
            say(f"{error.filename or options.respond_state}: {error.strerror or error}")
            return EXIT_USAGE
        except sqlite3.Error as error:
            say(f"{options.respond_state}: {error}")
            return EXIT_USAGE
        if options.respond_health and not once:
            try:
                server = RespondServer(*split_address(options.respond_health, DEFAULT_PORT), service.health)
            except OSError as error:
                say(f"health at {options.respond_health}: {error.strerror or error}; choose another: respond_health")
                return EXIT_USAGE
            parts.callback(server.close)
        return service.run_once(ending) if once else service.run(ending)


class _Service:
    def __init__(self, options: RespondOptions, parts: contextlib.ExitStack, *, once: bool, as_json: bool) -> None:
        """Raises OSError, sqlite3.Error, Unusable, ValueError, KafkaTrouble."""
        self._options = options
        self._as_json = as_json
        self._settle_s = 0.0 if once else options.respond_settle_s
        hooks = make_hooks(options)
        mode = LIVE if options.respond_act else DRY
        self._ledger = Ledger(options.respond_state, mode)
        parts.callback(self._ledger.close)
        audit = AuditFile(options.respond_state)
        parts.callback(audit.close)
        self._feed, self._events = _source(options, self._ledger)
        parts.callback(self._feed.close)
        if self._events is not None:
            parts.callback(self._events.close)
        self._desk = Desk(
            self._ledger,
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
            tell=self._tell,
        )
        self._taken: Mapping[str, Any] = {}
        self._trouble: str | None = None
        self._said = ""
        self._is_audit_full = False
        self._forgotten_s = 0.0
        self._health = self._look()
        what = "acts" if options.respond_act else "says what it would do (dry run; --act acts)"
        say(f"reads {self._feed.where}, {what}, by {', '.join(hooks) or 'no hook'}; audit: {audit.path}")

    def run(self, ending: Ending) -> int:
        self._start()
        pause_s = LOOK_S
        while not ending.asked:
            read = self._read()
            pause_s = LOOK_S if read else min(LONGEST_PAUSE_S, pause_s * 2.0)
            self._turn()
            ending.wait(pause_s if not read or isinstance(self._feed, FolderFeed) else 0.0)
        return self._end()

    def run_once(self, ending: Ending) -> int:
        """To the end of what is there now; advice need not have stood for a while."""
        self._start()
        until = time.monotonic() + READ_S
        while not ending.asked:
            if not self._read() or (not self._feed.is_caught_up and time.monotonic() > until):
                say(f"{self._feed.where} was not read to its end; nothing is done")
                return EXIT_USAGE
            if self._feed.is_caught_up:
                self._turn()
                break
        failed = sum(count for (outcome, _, _), count in self._desk.outcomes.items() if outcome == Outcome.FAILED.value)
        return self._end() or (EXIT_FAILED if failed or self._is_audit_full else 0)

    def health(self) -> RespondHealth:
        """From the thread of the server: what the last turn left."""
        return self._health

    def _start(self) -> None:
        if (why := self._ledger.breaker().why) is not None:
            say(f"the breaker is open ({why}); nothing is done until: whichrank respond reset-breaker")
        with self._writing():
            self._desk.begin(time.time())

    def _read(self) -> bool:
        """False: what is read does not answer; said once."""
        try:
            revisions = self._feed.read(LOOK_S)
        except (KafkaTrouble, Unusable) as error:
            self._trouble = str(error).splitlines()[0]
            if self._trouble != self._said:
                self._said = self._trouble
                say(f"{self._trouble}; trying again")
            return False
        self._trouble, self._said = None, ""
        if revisions or self._feed.position != self._taken:
            self._taken = self._feed.position
            self._ledger.take(revisions, self._taken, time.time(), self._settle_s)
        return True

    def _turn(self) -> None:
        now = time.time()
        # What an old life has not read yet may say that an incident is over: nothing is done before all is read.
        if self._feed.is_caught_up:
            with self._writing():
                self._desk.turn(now)
        if self._events is not None:
            self._events.turn()
        if time.monotonic() - self._forgotten_s > FORGET_S:
            self._ledger.forget(now)
            self._forgotten_s = time.monotonic()
        self._health = self._look()

    @contextlib.contextmanager
    def _writing(self) -> Any:
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
        if (why := self._ledger.breaker().why) is not None:
            say(f"ends with an open breaker: {why}")
            return EXIT_BREAKER
        say("ends")
        return 0

    def _tell(self, told: Mapping[str, Any]) -> None:
        prefix = "dry run: " if told.get("mode") == DRY else ""
        if self._as_json:
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()
        else:
            say(f"{prefix}{told.get('text')}")
        if self._events is not None:
            self._events.tell(told)
            self._events.turn()  # a turn with many acts may be long

    def _look(self) -> RespondHealth:
        now = time.time()
        trouble = "the audit file cannot be written" if self._is_audit_full else self._trouble
        return RespondHealth(
            mode=self._ledger.mode,
            turned_s=time.monotonic(),
            caught_up=self._feed.is_caught_up,
            trouble=trouble,
            breaker=self._ledger.breaker().why,
            nodes_out=len(self._ledger.nodes_out(now)),
            waiting=self._ledger.waiting(),
            events_dropped=self._events.dropped if self._events is not None else 0,
            unreadable=self._feed.unreadable,
            outcomes=dict(self._desk.outcomes),
            refusals=dict(self._desk.refusals),
        )


def _source(options: RespondOptions, ledger: Ledger) -> tuple[Feed, EventFeed | None]:
    """Raises Unusable, KafkaTrouble."""
    if options.respond_from is not None:
        return FolderFeed(options.respond_from, ledger.position()), None
    client = make_client(options.kafka_settings(client_id="whichrank-respond"))
    return KafkaFeed(client, ledger.position(), options.kafka), EventFeed(client, options.respond_cluster)


def make_hooks(options: RespondOptions) -> dict[str, Hook]:
    """Those of ``respond_hooks``, in its order. Raises ValueError."""
    hooks: dict[str, Hook] = {}
    for name in options.hooks:
        if name == Webhook.name:
            hooks[name] = Webhook(
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
