"""What an agent knows of each rank that it watches, and what it tells of it at once."""
