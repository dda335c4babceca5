"""Which of many nodes, rails or links is slow, by pairs that exchange data: what to measure next, and what it says."""
