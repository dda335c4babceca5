"""What all collectors have in common: their interface, small files of the kernel, counters as series."""
