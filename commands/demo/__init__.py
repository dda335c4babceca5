"""``whichrank demo``: a real job with a real fault, and whether it was found."""
