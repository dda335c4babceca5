"""What ``flink run`` starts: builds the job from the settings in the environment, and gives it to Flink."""

from __future__ import annotations

import sys

from ...processors.flink.job_graph import GraphSettings, submit
from ..settings.settings import ProcessOptions, SettingsError, kinds_of, load_settings
from ..support.stderr import say


def main() -> int:
    """The exit status: 0; 2 for settings that cannot be used."""
    try:
        options, _ = load_settings(ProcessOptions, {})
    except SettingsError as error:
        for line in str(error).splitlines():
            say(line)
        return 2
    submit(
        GraphSettings(
            kafka=options.kafka_settings(client_id="whichrank-flink"),
            checkpoint_ms=options.flink_checkpoint_ms,
            parallelism=options.flink_parallelism,
            beats_per_s=options.flink_beats,
            disabled=kinds_of(options.disable),
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
