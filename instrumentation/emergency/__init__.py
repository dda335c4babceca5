"""Emergency saves: all ranks agree on one step boundary, without a collective, and save there."""
