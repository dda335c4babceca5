"""Logs that are followed: the kernel's, and those of jobs."""
