"""``whichrank check pairs``: exchanges data between many nodes, two by two, and names whoever is slow."""
