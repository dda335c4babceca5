"""Everything that can be set, per command, and how values are found: file < environment < flags."""
