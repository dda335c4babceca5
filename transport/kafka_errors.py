"""What a Kafka client raises, as one line that says what is wrong and what to do. Knows both libraries by name only."""

from __future__ import annotations

import re
import ssl

from .kafka_client import Fenced, KafkaTrouble, TooLarge
from .kafka_settings import KafkaSettings

#: By the name of the error, as Kafka's protocol has it; kafka-python appends "Error", librdkafka writes it in capitals.
_FENCED = frozenset({"producerfenced", "invalidproducerepoch", "transactioncoordinatorfenced", "fenced"})
#: kafka-python keeps the error that stopped a producer, and raises at each later call KafkaError with its words.
_STOPPED_BY = re.compile(r"we are in an error state: \[Error \d+\] (\w+?)Error\b")
_AUTHENTICATION = frozenset(
    {"saslauthenticationfailed", "unsupportedsaslmechanism", "illegalsaslstate", "authentication"}
)
_AUTHORIZATION = frozenset(
    {
        "topicauthorizationfailed",
        "clusterauthorizationfailed",
        "groupauthorizationfailed",
        "transactionalidauthorizationfailed",
    }
)
_UNKNOWN_TOPIC = frozenset(
    {
        "unknowntopicorpartition",
        "unknowntopicorpart",
        "unknowntopic",
        "unknownpartition",
        "unknowntopicid",
        "invalidtopic",
    }
)
_TOO_LARGE = frozenset({"messagesizetoolarge", "recordlisttoolarge", "msgsizetoolarge"})
_TOO_OLD = frozenset(
    {"unsupportedversion", "incompatiblebrokerversion", "unrecognizedbrokerversion", "unsupportedfeature"}
)
_UNREACHABLE = frozenset(
    {
        "kafkatimeout",
        "kafkaconnection",
        "nodenotready",
        "metadataemptybrokerlist",
        "alltransportfailure",
        "allbrokersdown",
        "transport",
        "resolve",
        "networkexception",
        "brokernotavailable",
        "timedout",
        "msgtimedout",
        "requesttimedout",
    }
)
OLDEST_BROKER = "2.1"


def explain(
    error: BaseException, settings: KafkaSettings, what: str, *, name: str | None = None, text: str | None = None
) -> KafkaTrouble:
    """A KafkaTrouble for what a client library raised.

    what: what was being done, as "write to topic otlp_logs".
    name, text: the protocol's name of the error and its words, where the exception does not carry them.
    """
    if isinstance(error, KafkaTrouble):
        return error
    plain = (name or type(error).__name__).lower().replace("_", "").removesuffix("error").removesuffix("exception")
    at = f"Kafka at {settings.brokers}"
    text = " ".join((text or str(error)).split())
    if stopped_by := _STOPPED_BY.search(text):
        plain = stopped_by[1].lower()
    who = f"user {settings.user!r}" if settings.user else "this client (no user is set)"
    if plain in _FENCED:
        return Fenced(f"{at}: another whichrank process has taken over; this one goes on as a standby")
    if plain in _AUTHENTICATION or "authentication" in text.lower():
        return KafkaTrouble(
            f"{at} refuses {who}: check kafka_user, kafka_password and kafka_sasl ({settings.sasl or 'none'}) ({text})",
            lasting=True,
        )
    if isinstance(error, ssl.SSLError) or "certificate" in text.lower() or "ssl" in plain:
        return KafkaTrouble(
            f"{at}: TLS fails ({text}): check kafka_tls, kafka_tls_ca and the host name in the brokers' certificate",
            lasting=True,
        )
    if plain in _AUTHORIZATION:
        return KafkaTrouble(
            f"{at}: {who} may not {what}: an ACL is missing (docs/operations.md lists the rights)", lasting=True
        )
    if plain in _UNKNOWN_TOPIC:
        return KafkaTrouble(
            f"{at}: cannot {what}: the topic is not there; make it with: whichrank topics", lasting=True
        )
    if plain in _TOO_LARGE:
        return TooLarge(f"{at}: cannot {what}: the message is larger than the topic takes (max.message.bytes)")
    if plain in _TOO_OLD:
        return KafkaTrouble(
            f"{at}: cannot {what}: the brokers are too old or speak no version of theirs; whichrank needs Kafka "
            f"{OLDEST_BROKER} or later (kafka_api_version names a version) ({text})",
            lasting=True,
        )
    if plain in _UNREACHABLE or isinstance(error, (TimeoutError, ConnectionError)):
        return KafkaTrouble(
            f"{at} does not answer: is it running, are host and port right, does it ask for TLS or a password? ({text})"
        )
    return KafkaTrouble(f"{at}: cannot {what}: {text or type(error).__name__}")


def no_leader(settings: KafkaSettings, topic: str) -> str:
    """The line for people about a topic whose partitions did not become known in time.

    Both reasons (no broker, no topic) look alike to a client.
    """
    return (
        f"Kafka at {settings.brokers}: no leader is known for topic {topic}: either its broker does not answer, or the "
        "topic is not there; make it with: whichrank topics"
    )
