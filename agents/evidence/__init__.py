"""Stacks, dumps, rings and logs of a rank: asked for or saved at its end, and kept for people."""
