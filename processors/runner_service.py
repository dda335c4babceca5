"""A runner as a service on Kafka: who leads and who stands by, what happens when Kafka is away, how far behind we are.

One thread calls ``turn``; everything here follows from the bus, the runner and a monotonic clock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from ..transport.kafka_client import Fenced, KafkaTrouble
from ..transport.kafka_log import KafkaLog
from ..transport.kafka_writer import Unsettled
from .runner import EmbeddedRunner

#: A leader that has written nothing to the clock for so long is gone: it writes every 3 s.
TAKE_OVER_S = 10.0
#: Reads per turn: a service that catches up still hears signals and answers for its health.
READS_PER_TURN = 8
#: The service's own figures are taken this often.
LOOK_S = 0.5
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0


class Role(Enum):
    STARTING = "starting"  # reads what others have written, to learn who leads
    LEADER = "leader"
    STANDBY = "standby"
    SHADOW = "shadow"  # judges, publishes nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceHealth:
    """What the service says of itself."""

    role: Role
    caught_up: bool
    #: Age of the oldest message that was fetched and not processed, by the broker's clock.
    lag_s: float
    #: None: Kafka answers.
    trouble: str | None
    #: Since the last turn that ended.
    idle_s: float
    messages: int
    records: int
    #: Records that went to the dead-letter topic.
    unreadable: int
    #: Points of other people's exporters that were left out, because they name no host.
    nameless: int
    published: int
    #: Conclusions that are not published yet.
    outbox: int
    #: Messages that retention had deleted before they were read.
    missed: int
    #: Conclusions that were left out because no broker takes a message of their size.
    too_large: int
    failed_commits: int
    rows: int
    timers: int
    timers_late_s: float
    #: How often an operator failed on a record, and how many records were dropped after it had failed again.
    contained: int = 0
    muted: int = 0
    #: Jobs and entities that were forgotten before their time, as there were too many.
    forgotten: int = 0


class Service:
    """Drives one runner over one ``KafkaLog``."""

    def __init__(
        self,
        runner: EmbeddedRunner,
        log: KafkaLog,
        *,
        shadow: bool,
        report: Callable[[str], None],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes the runner a standby until it is known who leads, or a shadow (judges, publishes nothing) for good.

        The runner must have been made with ``live=False``. report: takes one line for what a person should know.
        """
        self._runner = runner
        self._log = log
        self._report = report
        self._monotonic_s = monotonic_s
        self._is_shadow = shadow
        self.role = Role.SHADOW if shadow else Role.STARTING
        self._trouble: str | None = None
        self._pause_s = FIRST_PAUSE_S
        self._turned_s = monotonic_s()
        self._has_said_alive = False
        self._looked_s = 0.0
        if shadow:
            runner.shadow(keeps_time=False)
        else:
            runner.follow()
        self._health = self._look()

    def turn(self) -> float:
        """Processes what has come and keeps the role. Returns for how long the caller may sleep, in seconds.

        What an operator raises is contained by the runner; what else is raised ends the process.
        """
        try:
            processed = self._runner.drain(READS_PER_TURN)
            self._keep_role()
        except Fenced as fenced:
            self._step_down(str(fenced))
            return 0.0
        except Unsettled:
            return 0.0
        except KafkaTrouble as trouble:
            return self._wait_for_kafka(trouble)
        finally:
            self._turned_s = self._monotonic_s()
            if self._turned_s - self._looked_s >= LOOK_S:
                self._looked_s = self._turned_s
                with contextlib.suppress(KafkaTrouble):  # as of the last look; the next turn says what is wrong
                    self._health = self._look()
        if self._trouble is not None:
            self._report(f"Kafka answers again after: {self._trouble}")
            self._trouble, self._pause_s = None, FIRST_PAUSE_S
        return 0.0 if processed else 0.01

    def health(self) -> ServiceHealth:
        """The service's health as of the last second, but for ``idle_s``. From any thread."""
        return replace(self._health, idle_s=self._monotonic_s() - self._turned_s)

    def _look(self) -> ServiceHealth:
        timers, due_ns = self._runner.timers()
        return ServiceHealth(
            role=self.role,
            caught_up=self._log.caught_up(),
            lag_s=self._log.lag_s(),
            trouble=self._trouble,
            idle_s=0.0,
            messages=self._runner.messages,
            records=self._runner.records,
            unreadable=self._runner.broken,
            nameless=self._runner.nameless,
            published=self._runner.published,
            outbox=self._runner.outbox_size,
            missed=self._log.missed,
            too_large=self._log.too_large,
            failed_commits=self._runner.failed_commits,
            contained=self._runner.contained,
            muted=self._runner.muted,
            forgotten=self._runner.forgotten,
            rows=self._runner.state_rows,
            timers=timers,
            timers_late_s=max(0, self._log.now_ns() - due_ns) / 1e9 if due_ns is not None else 0.0,
        )

    def _keep_role(self) -> None:
        log = self._log
        if self.role is Role.LEADER and log.is_overtaken:
            self._step_down("")
        elif self.role is Role.LEADER:
            if log.is_quiet():
                log.say_alive()
            return
        if not log.clock_is_read():
            return
        if not self._has_said_alive:  # the answer tells the broker's time, and with it how old the others' words are
            log.say_alive()
            self._has_said_alive = True
            return
        nobody_leads = log.silence_s() > TAKE_OVER_S
        if self._is_shadow:
            log.leads = nobody_leads  # cuts are everybody's; it publishes nothing
            self._runner.shadow(keeps_time=nobody_leads)
        elif nobody_leads:
            self._take_over()
        elif self.role is Role.STARTING:
            self.role = Role.STANDBY
            self._report(f"{log.other} leads; standing by")

    def _take_over(self) -> None:
        self._log.claim()
        self._runner.lead()
        before, self.role = self.role, Role.LEADER
        if before is Role.STANDBY:
            self._report(f"{self._log.other} has been silent for {self._log.silence_s():.0f} s: taking over")

    def _step_down(self, why: str) -> None:
        self._log.leads = False
        self._runner.follow()
        self.role = Role.STANDBY
        self._report(why or f"{self._log.other or 'another instance'} leads now; standing by")

    def _wait_for_kafka(self, trouble: KafkaTrouble) -> float:
        line = str(trouble)
        if line != self._trouble:
            self._report(f"{line}; trying again")
        self._trouble = line
        self._health = replace(self._health, trouble=line)
        pause_s, self._pause_s = self._pause_s, min(LONGEST_PAUSE_S, self._pause_s * 2.0)
        return pause_s
