"""Causes that jobs share: a switch, a storage server, a neighbour, a change. docs/shared-causes.md."""
