"""What hooks stand on: guards that keep failures out of the job, patches, hooks of imports. Knows no torch."""
