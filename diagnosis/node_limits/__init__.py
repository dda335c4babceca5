"""Limits of what is measured on nodes: one table for jobs that run, checks before and after them, and ports' counters."""
