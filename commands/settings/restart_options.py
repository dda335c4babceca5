"""Whether, for what and how often ``whichrank run`` starts its command again."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from ..support.node_names import is_node_name
from ..support.restart_trigger import Trigger
from .kafka_options import words_of
from .settings_sources import Settings

_MOST_FILE_BYTES = 1 << 20


class RestartOptions(Settings):
    """The supervisor of ``whichrank run``; off by default."""

    restarts: int = Field(0, ge=0, le=1000, description="so often the command is started again; 0: never")
    restart_on: str = Field(
        "hang,crash", description=f"for what it is, with commas: {', '.join(trigger.value for trigger in Trigger)}"
    )
    restart_spares: str = Field(
        "", description="nodes that may take a bad one's place, with commas; or a file that names one a line"
    )
    restart_grace_s: float = Field(
        30.0, ge=1.0, le=3600.0, description="seconds between SIGTERM and SIGKILL when the command is ended"
    )
    restart_backoff_s: float = Field(
        2.0,
        ge=0.0,
        le=300.0,
        description="seconds before the first restart within an hour; each waits twice as long, 300 s at most",
    )
    restarts_per_hour: int = Field(6, ge=1, le=1000, description="more within an hour are not made")
    restart_dry_run: bool = Field(False, description="say what would be restarted, and do nothing")

    @field_validator("restart_on")
    @classmethod
    def _check_on(cls, value: str) -> str:
        triggers_of(value)
        return value

    @field_validator("restart_spares")
    @classmethod
    def _check_spares(cls, value: str) -> str:
        spares_of(value)
        return value


def triggers_of(words: str) -> frozenset[Trigger]:
    """The triggers in a text, with commas between them. Raises ValueError for an unknown one, or none."""
    known = {trigger.value: trigger for trigger in Trigger}
    if unknown := [word for word in words_of(words) if word not in known]:
        raise ValueError(f"{', '.join(unknown)}: there are {', '.join(known)}")
    if not words_of(words):
        raise ValueError(f"name at least one of {', '.join(known)}; restarts = 0 turns restarts off")
    return frozenset(known[word] for word in words_of(words))


def spares_of(words: str) -> tuple[str, ...]:
    """Names of nodes in a text with commas, or in the file that it names. Raises ValueError."""
    names = words_of(words)
    if len(names) == 1 and ("/" in names[0] or Path(names[0]).is_file()):
        try:
            with open(names[0], encoding="utf-8") as file:
                lines = file.read(_MOST_FILE_BYTES).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{names[0]}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
        names = [word for line in lines if (word := line.partition("#")[0].strip())]
    if odd := [name for name in names if not is_node_name(name)]:
        raise ValueError(f"{', '.join(odd[:3])}: no name of one node")
    return tuple(names)
