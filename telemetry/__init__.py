"""The vocabulary every part of whichrank speaks: records, ring layout, block codec, OTLP, incident.

Importing this package imports nothing else; each module is imported by those who need it.
"""
