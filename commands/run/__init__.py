"""``whichrank run``: the command as a child, and the loop that watches it."""
