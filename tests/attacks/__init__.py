"""Attacks and faults against what runs with rights: agent, judge, services. `make attacks` prints which held."""
