"""What is told of an incident, and to whom: the same for every receiver."""
