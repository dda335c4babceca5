"""Flags that several commands share."""

from __future__ import annotations

import typer

KAFKA = typer.Option(metavar="HOST:PORT", help="brokers, several with commas between them")
OTLP = typer.Option(
    metavar="URL", help="OpenTelemetry endpoint, as http://HOST:4318 or grpc://HOST:4317; default: as OTEL_* say"
)
PAIRS = typer.Option("--set", metavar="KEY=VALUE", help="any other key, as kafka_tls=true")
#: Of ``whichrank run``.
CONFIG_HERE = typer.Option("--config", help="settings file (TOML); default ./whichrank.toml, if it is yours alone")
CONFIG = typer.Option(help="settings file (TOML); default /etc/whichrank/whichrank.toml")
PRINT_CONFIG = typer.Option("--print-config", help="print the settings and stop")
