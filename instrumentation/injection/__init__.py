"""Faults that a rank does to itself on request, in jobs that allow it: the rehearsal of ``whichrank inject``."""
