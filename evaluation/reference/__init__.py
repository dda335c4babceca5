"""``docs/reference.md``, made of the code: every name that whichrank writes, and everything that can be set."""
