"""An incident in words, for a terminal."""
