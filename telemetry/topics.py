"""Topic names: the words alone, so that operators can name a topic without knowing the transport."""

from __future__ import annotations

TOPIC_LOGS = "otlp_logs"
TOPIC_SPANS = "otlp_spans"
TOPIC_METRICS = "otlp_metrics"
TOPIC_BLOCKS = "whichrank.blocks"
TOPIC_FINDINGS = "whichrank.findings"
#: What people say: labels, acknowledgements, plans. Who may write there speaks as an operator of the cluster.
TOPIC_WORDS = "whichrank.words"
TOPIC_INCIDENTS = "whichrank.incidents"
TOPIC_REQUESTS = "whichrank.requests"
TOPIC_DLQ = "whichrank.dlq"
#: Ticks and input_silent marks, so that a replay sees the same time; on Kafka also the cuts, which make one order.
TOPIC_CLOCK = "whichrank.clock"

#: Key of what people say in a run's own folder, where it lies on ``TOPIC_FINDINGS`` among what operators conclude.
KEY_OF_PEOPLE = "people"
