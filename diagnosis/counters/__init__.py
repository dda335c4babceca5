"""Ports of a node over time: states and counters of InfiniBand, RoCE and Ethernet, and what they show."""
