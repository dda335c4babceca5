"""Kafka as Flink's tables: what is read with its place and stamp, what is written in transactions. Texts alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...transport.kafka_settings import KafkaSettings

#: Classes of the connector's own copy of Kafka's client.
_LOGIN = "org.apache.flink.kafka.shaded.org.apache.kafka.common.security"
#: A partition from which nothing has come for so long, no beat either, is not waited for any more.
DEAF_S = 60
#: While a backlog is read, no partition is read so much further than the others: what is ahead waits in state.
MOST_APART_S = 10
#: A transaction that nobody ends is aborted by the brokers after so long; they allow 15 minutes unless told otherwise.
TRANSACTION_MS = 900_000


def client_properties(settings: KafkaSettings) -> dict[str, str]:
    """How Java's client reaches the brokers, as ours does. Raises OSError for a certificate that cannot be read."""
    found = {"bootstrap.servers": settings.brokers, "security.protocol": settings.security_protocol}
    if settings.tls_ca is not None:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": settings.tls_ca.read_text()}
    if settings.tls_certificate is not None and settings.tls_key is not None:
        found |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": settings.tls_certificate.read_text(),
            "ssl.keystore.key": settings.tls_key.read_text(),
        }
    if settings.tls and not settings.tls_check_host:
        found["ssl.endpoint.identification.algorithm"] = ""
    if settings.sasl:
        module = "plain.PlainLoginModule" if settings.sasl == "PLAIN" else "scram.ScramLoginModule"
        user, password = (_quoted(text) for text in (settings.user, settings.password))
        found |= {
            "sasl.mechanism": settings.sasl,
            "sasl.jaas.config": f"{_LOGIN}.{module} required username={user} password={password};",
        }
    return found


def input_options(settings: KafkaSettings, topics: Sequence[str], group: str) -> dict[str, str]:
    """Options of the table of inputs, read from their beginning where no checkpoint says otherwise."""
    return {
        **_of_raw_records(settings, topics),
        "scan.startup.mode": "earliest-offset",
        "scan.topic-partition-discovery.interval": "15 s",
        "scan.watermark.alignment.group": "inputs",
        "scan.watermark.alignment.max-drift": f"{MOST_APART_S} s",
        "scan.watermark.alignment.update-interval": "200 ms",
        "scan.watermark.idle-timeout": f"{DEAF_S} s",
        **_properties(
            {
                **client_properties(settings),
                "group.id": group,
                "isolation.level": "read_committed",
                "commit.offsets.on.checkpoint": "false",
            }
        ),
    }


def output_options(settings: KafkaSettings, topics: Sequence[str], prefix: str) -> dict[str, str]:
    """Options of the table of outputs. prefix: of the transactions' ids, this job's own."""
    return {
        **_of_raw_records(settings, topics),
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": prefix,
        **_properties(
            {
                **client_properties(settings),
                "transaction.timeout.ms": str(TRANSACTION_MS),
                "max.request.size": str(settings.max_message_bytes + 100_000),
                "compression.type": "zstd",
            }
        ),
    }


def _of_raw_records(settings: KafkaSettings, topics: Sequence[str]) -> dict[str, str]:
    """What both tables have alike: keys and values are bytes as they lie on Kafka."""
    return {
        "connector": "kafka",
        "topic": ";".join(settings.topic_prefix + topic for topic in topics),
        "key.format": "raw",
        "key.fields": "k",
        "value.format": "raw",
        "value.fields-include": "EXCEPT_KEY",
    }


def table(name: str, columns: Sequence[str], options: Mapping[str, str]) -> str:
    """A CREATE TABLE statement."""
    told = ",\n  ".join(f"{_text(key)} = {_text(value)}" for key, value in options.items())
    return f"CREATE TEMPORARY TABLE {name} (\n  {', '.join(columns)}\n) WITH (\n  {told}\n)"


INPUT_COLUMNS = (
    "v BYTES",
    "topic STRING METADATA VIRTUAL",
    "part INT METADATA FROM 'partition' VIRTUAL",
    "off BIGINT METADATA FROM 'offset' VIRTUAL",
    "ts TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL",
    "k BYTES",
    # Of one millisecond several may come.
    "WATERMARK FOR ts AS ts - INTERVAL '0.001' SECOND",
)
OUTPUT_COLUMNS = (
    "topic STRING METADATA",
    "headers MAP<STRING, BYTES> METADATA",
    "k BYTES",
    "v BYTES",
)
#: Rows of inputs as the first stage takes them; the stamp in milliseconds, and as Flink's time of the row.
INPUT_QUERY = (
    "SELECT topic, part, off,"
    " CAST(EXTRACT(EPOCH FROM ts) AS BIGINT) * 1000 + EXTRACT(MILLISECOND FROM ts) AS ms, k, v, ts FROM inputs"
)


def _properties(properties: Mapping[str, str]) -> dict[str, str]:
    return {f"properties.{name}": value for name, value in properties.items()}


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
