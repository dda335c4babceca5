"""Results of checks, of ``whichrank check`` and of a site's own programs, as conditions of the node."""
