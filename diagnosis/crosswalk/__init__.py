"""Telemetry of others, as an OpenTelemetry Collector brings it, in our names: one table (``*.toml``) per exporter."""
