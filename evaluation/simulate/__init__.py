"""``whichrank simulate``: a cluster that never existed, judged, captured, or sent to Kafka."""
