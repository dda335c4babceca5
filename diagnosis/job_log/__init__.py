"""Reads the logs of a job (ranks, launcher, scheduler, mixed) and says which line began it, and what only followed."""
