"""Topic names that operators emit to: the words alone, so that processors need not know the transport."""

from __future__ import annotations

TOPIC_FINDINGS = "whichrank.findings"
TOPIC_REQUESTS = "whichrank.requests"
