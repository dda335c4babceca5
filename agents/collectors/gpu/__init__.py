"""NVIDIA's GPUs, by the driver's own library."""
