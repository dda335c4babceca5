"""Where services read incidents from, and when a revision is news."""
