"""From drained events to the rows and blocks that operators read."""
