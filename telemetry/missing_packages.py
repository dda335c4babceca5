"""What to say where a package of somebody else's is not installed: its name, and the extra that brings it.

Whichrank can be installed with each extra alone, so this is not a fault. The standard library alone. A module of
whichrank's own that is missing is a fault, and nothing is said of it here.
"""

from __future__ import annotations

import sys

#: As they are installed, where that is not the name that is imported.
_INSTALLED_AS = {
    "confluent_kafka": "confluent-kafka",
    "google": "protobuf",
    "grafana_client": "grafana-client",
    "grpc": "grpcio",
    "kafka": "kafka-python",
    "opentelemetry.exporter.otlp.proto.grpc": "opentelemetry-exporter-otlp-proto-grpc",
    "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry.proto": "opentelemetry-proto",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry": "opentelemetry-proto",
    "prometheus_client": "prometheus-client",
    "pydantic_settings": "pydantic-settings",
    "pynvml": "nvidia-ml-py",
}


def missing_package(error: BaseException) -> str:
    """Name by which the package is installed whose absence made this error; empty for every other error."""
    if not isinstance(error, ModuleNotFoundError):
        return ""
    name = error.name or ""
    top = name.partition(".")[0]
    if top == "whichrank" or top in sys.stdlib_module_names:
        return ""
    return next((package for module, package in _INSTALLED_AS.items() if f"{name}.".startswith(f"{module}.")), top)


def how_to_install(package: str, extra: str) -> str:
    """One line for a person: the package that is missing, and pip's words for the extra that brings it."""
    return f"{package} is not installed: pip install 'whichrank[{extra}]'"


def in_words(error: BaseException, extra: str) -> str:
    """The error as one line; if a package is missing, how to install it. extra: of the part in which it was met."""
    package = missing_package(error)
    return how_to_install(package, extra) if package else f"{type(error).__name__}: {error}"
