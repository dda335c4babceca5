"""Where the job stands: phases, steps and losses. Hooks note it here, and the session writes it to the ring."""
