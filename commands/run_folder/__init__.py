"""What one watched run leaves on disk, and what people write into it: incidents, labels, plans, losses."""
