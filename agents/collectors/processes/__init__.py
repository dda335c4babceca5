"""The job's processes: what they use, and which of them the kernel holds."""
