"""How to reach a Kafka cluster. Plain data; ``commands/settings`` fills it from file, environment and flags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Raises ValueError for combinations that make no sense."""

    #: host:port,host:port
    brokers: str
    #: "kafka-python" or "confluent-kafka" (the extra [confluent])
    client: str = "kafka-python"
    client_id: str = "whichrank"
    #: Put before every topic's name, and before transactional ids.
    topic_prefix: str = ""
    tls: bool = False
    tls_ca: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_check_host: bool = True
    #: "", "PLAIN", "SCRAM-SHA-256" or "SCRAM-SHA-512"
    sasl: str = ""
    user: str = ""
    password: str = ""
    #: The protocol's version as "2.3", for brokers that do not say it themselves; empty: they are asked.
    api_version: str = ""
    #: A message and everything around it stays below; brokers take 1 MiB unless told otherwise.
    max_message_bytes: int = 1_000_000
    #: What a producer holds in memory; beyond it ``send`` raises QueueFull.
    queue_bytes: int = 32 << 20
    #: How long ``send`` may wait for the partitions of a topic that is not known yet.
    metadata_wait_s: float = 1.0
    #: A message that was not taken by a broker for so long is given back as failed.
    delivery_timeout_s: float = 30.0
    request_timeout_s: float = 10.0
    linger_s: float = 0.02

    def __post_init__(self) -> None:
        if not self.brokers.strip():
            raise ValueError("no Kafka broker is named; give --kafka HOST:PORT or WHICHRANK_KAFKA")
        if self.sasl and not self.user:
            raise ValueError(f"SASL {self.sasl} asks for a user; give kafka_user and kafka_password")
        if self.sasl not in ("", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            raise ValueError(f"SASL mechanism {self.sasl!r} is none of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("a client certificate needs its key, and the key its certificate")

    @property
    def security_protocol(self) -> str:
        """Kafka's word for whether TLS and SASL are used: "SASL_SSL", "SSL", "SASL_PLAINTEXT" or "PLAINTEXT"."""
        return ("SASL_" if self.sasl else "") + ("SSL" if self.tls else "PLAINTEXT")
