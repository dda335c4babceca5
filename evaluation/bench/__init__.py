"""``whichrank bench``: how often a detector is right about faults whose truth is known."""
