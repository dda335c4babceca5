"""``whichrank check``: is this node fit for a job? Families of checks, each in a process that can be left behind."""
