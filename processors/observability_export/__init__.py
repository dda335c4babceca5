"""Spans, metrics and log records that processors make for people: of steps, incidents and the pipeline itself."""
