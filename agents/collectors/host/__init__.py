"""The host: memory, pressure, limits, clock, /dev/shm."""
