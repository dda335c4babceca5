"""What does not leave a node: secrets, and what its site withholds."""
