"""What a check may do beside looking: set a node up, and reclaim what a job left behind. Dry by default."""
