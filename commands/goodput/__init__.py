"""``whichrank goodput``: what the seconds of runs were spent on."""
