"""What the kernel tells of ranks' processes and of their connections."""
