"""What the settings of several commands share: how to reach Kafka, where a service keeps its state, lists in a line."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ByteSize, Field, SecretStr, model_validator

from ...transport.kafka_settings import KafkaSettings
from .secret_file import read_secret_file
from .settings_sources import Settings


class KafkaOptions(Settings):
    """How to reach Kafka: the same keys for every command that speaks to it."""

    kafka: str = Field("", description="brokers, HOST:PORT,HOST:PORT; empty: no Kafka")
    kafka_client: str = Field("kafka-python", description="kafka-python or confluent-kafka (the extra [confluent])")
    kafka_tls: bool = Field(False, description="speak TLS")
    kafka_tls_ca: Path | None = Field(None, description="certificates of authorities, PEM; default: the system's")
    kafka_tls_certificate: Path | None = Field(None, description="our certificate, PEM, where brokers ask for one")
    kafka_tls_key: Path | None = Field(None, description="its key, PEM")
    kafka_tls_check_host: bool = Field(True, description="the brokers' certificates must name their hosts")
    kafka_sasl: str = Field("", description="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; empty: no password is asked for")
    kafka_user: str = Field("", description="who we are for SASL")
    kafka_password: SecretStr = Field(SecretStr(""), description="its password; better by variable or file")
    kafka_password_file: Path | None = Field(None, description="file that holds the password")
    kafka_api_version: str = Field("", description="as 2.3, for brokers that do not tell theirs")
    kafka_topic_prefix: str = Field("", description="before the name of each topic, where a cluster is shared")
    kafka_max_message: ByteSize = Field(ByteSize(1_000_000), description="what the brokers take as one message")

    @model_validator(mode="after")
    def _check_kafka(self) -> KafkaOptions:
        if self.kafka:
            self.kafka_settings()
        return self

    def kafka_settings(self, *, client_id: str = "whichrank", delivery_timeout_s: float = 30.0) -> KafkaSettings:
        """The settings of a Kafka client, with what no user sets as given here.

        Raises ValueError with what is wrong and what to do.
        """
        password = self.kafka_password.get_secret_value()
        if self.kafka_sasl and self.kafka_password_file is not None:
            try:
                password = read_secret_file(self.kafka_password_file)
            except ValueError as error:
                raise ValueError(f"kafka_password_file {self.kafka_password_file}: {error}") from None
        return KafkaSettings(
            brokers=self.kafka,
            client=self.kafka_client,
            client_id=client_id,
            tls=self.kafka_tls,
            tls_ca=self.kafka_tls_ca,
            tls_certificate=self.kafka_tls_certificate,
            tls_key=self.kafka_tls_key,
            tls_check_host=self.kafka_tls_check_host,
            sasl=self.kafka_sasl,
            user=self.kafka_user,
            password=password,
            api_version=self.kafka_api_version,
            topic_prefix=self.kafka_topic_prefix,
            max_message_bytes=int(self.kafka_max_message),
            delivery_timeout_s=delivery_timeout_s,
        )


def words_of(text: str) -> list[str]:
    """The words in a text with commas between them, stripped; empty ones are left out."""
    return [word.strip() for word in text.split(",") if word.strip()]


def default_data(service: str) -> Path:
    """The folder in which a service of this user keeps what outlives it."""
    if os.getuid() == 0:
        return Path("/var/lib/whichrank") / service
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "whichrank" / service
