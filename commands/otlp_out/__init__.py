"""Telemetry straight to an OpenTelemetry endpoint, without Kafka."""
