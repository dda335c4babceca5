"""Everything that can be set for ``whichrank grafana annotate``."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr, model_validator

from .kafka_options import KafkaOptions, default_data
from .secret_file import read_secret_file


class AnnotateOptions(KafkaOptions):
    """``whichrank grafana annotate``."""

    annotate_from: Path | None = Field(None, description="folder of a run that is read instead of Kafka")
    annotate_state: Path = Field(
        default_factory=lambda: default_data("annotate"), description="folder for how far the topic was read"
    )
    annotate_max_age_s: float = Field(7 * 86400.0, gt=0, description="older news is not annotated")
    grafana_url: str = Field("", description="of the Grafana, as in a browser")
    grafana_token: SecretStr = Field(
        SecretStr(""), description="of a service account that may edit; better by variable or file"
    )
    grafana_token_file: Path | None = Field(None, description="file that holds the token")
    grafana_organization: int | None = Field(None, description="id of the organisation; default: the token's")

    @model_validator(mode="after")
    def _check_together(self) -> AnnotateOptions:
        if not self.kafka and self.annotate_from is None:
            raise ValueError("a source is needed: kafka (HOST:PORT), or annotate_from (the folder of a run)")
        if not self.grafana_url:
            raise ValueError("grafana_url is needed: the address of the Grafana, as in a browser")
        return self

    def token(self) -> str:
        """The token for Grafana, from its file or the settings; "" none.

        Raises ValueError where the file cannot be read.
        """
        if self.grafana_token_file is None:
            return self.grafana_token.get_secret_value()
        try:
            return read_secret_file(self.grafana_token_file)
        except ValueError as error:
            raise ValueError(f"grafana_token_file {self.grafana_token_file}: {error}") from None
