"""How the agent beside a command is set. Pure."""

from __future__ import annotations

from ...agents.base.settings import AgentSettings

#: Files that incidents ask for; of what was drained of the rings so much is kept in memory for them.
REQUESTS_PER_MINUTE, HISTORY_S, HISTORY_BYTES = 30, 120.0, 16 << 20


def agent_settings(
    *, publishes: bool, tells_people: bool = False, kernel_log: str = "", withheld: frozenset[str] = frozenset()
) -> AgentSettings:
    """Settings of the agent beside a command: what incidents ask for stays here.

    publishes: to Kafka as well. tells_people: makes spans and metrics all the same.
    kernel_log: a file, "" the usual one. withheld: what does not leave the node.
    """
    return AgentSettings(
        tell_people=publishes or tells_people,
        requests_per_minute=REQUESTS_PER_MINUTE,
        history_s=HISTORY_S,
        history_bytes=HISTORY_BYTES,
        keeps_answers=True,
        ships_answers=publishes,
        kernel_log=kernel_log,
        withheld=withheld,
    )
