"""``whichrank inject``: a fault in a running job, on purpose, and whether whichrank finds it."""
