"""Ring files: which there are, and what their bytes say."""
