"""Limits of what is measured on nodes: one table for jobs that run, for checks before them, and for ports' counters."""
