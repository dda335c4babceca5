"""What every part of an agent uses: its settings, its own counters, priorities of records, stacks as frames."""
