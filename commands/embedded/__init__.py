"""Agent, bus and operators of one run in one process: live, and once more over its capture."""
