"""Reads what nodes and jobs leave behind: text or bytes in, facts out. No I/O but of data files, no clock, no state.

Used by agents (live), by processors (what words mean) and by ``whichrank diagnose`` (after a bad night).
"""
