"""Ports: InfiniBand, RoCE, Ethernet."""
