"""What changes seldom: scheduler, versions, topology."""
