"""The road from agents to the bus: messages that are late, come twice or never arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .clock import generator
from .resources import Resources
from .sent import SentMessage

#: Of a repeated message, after the first.
_AGAIN_S = 0.3


class LossyPipe:
    def __init__(self, resources: Resources, seed: int) -> None:
        self._resources = resources
        self._random = generator(seed, "pipe")
        self._waiting: list[SentMessage] = []

    def through(self, sent: Sequence[SentMessage], until_s: float) -> list[SentMessage]:
        """Sends messages, and returns all that has arrived before ``until_s``, in order of arrival; the rest stays on
        its way.
        """
        for message in sent:
            self._waiting += self._carried(message)
        self._waiting.sort(key=lambda message: (message.at_s, message.node, message.topic))
        arrived = [message for message in self._waiting if message.at_s < until_s]
        self._waiting = self._waiting[len(arrived) :]
        return arrived

    def _carried(self, message: SentMessage) -> list[SentMessage]:
        node = int(message.node.rpartition("-")[2]) if message.node else -1
        if node < 0:
            return [message]
        agent = {name: float(self._resources.of("agent", name)[node]) for name in ("loss", "repeats", "delay_s")}
        if not any(agent.values()):
            return [message]
        if self._random.random() < agent["loss"]:
            return []
        message = replace(message, at_s=message.at_s + agent["delay_s"])
        twice = self._random.random() < agent["repeats"]
        return [message, replace(message, at_s=message.at_s + _AGAIN_S)] if twice else [message]
