"""``whichrank run --restarts``: when the command is ended and started again, and how (docs/supervisor.md)."""
