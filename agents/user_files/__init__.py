"""Whatever a user of the node can name is opened here, with that user's rights, and nowhere else in the agent."""
