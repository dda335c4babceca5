"""The cluster operator: the life of incidents."""
