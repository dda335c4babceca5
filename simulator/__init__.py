"""A cluster that never existed: mechanisms from which symptoms follow, and the truth kept apart (docs/simulator.md)."""
