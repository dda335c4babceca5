"""whichrank: which rank, which node, why. See README.md."""
