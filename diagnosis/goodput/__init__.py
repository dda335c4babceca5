"""Where a job's seconds went: intervals, buckets, and the figures that follow from them. Pure; times are integers."""
