"""Spans and metrics of ranks for people."""
