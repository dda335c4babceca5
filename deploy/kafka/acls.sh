#!/bin/sh
# The least that each user of whichrank must be allowed; run once, by somebody who may (docker-compose.yml does).
#
#   acls.sh HOST:PORT [OPTIONS OF kafka-acls.sh]
#
# AGENTS, the users that agents log in as, with spaces (agent). A user per node ("agent-node-1 agent-node-2") lets one
# be locked out alone. The broker tells no consumer who has written a message: one agent's user can still speak of
# another's node, and whichrank does not check it.
#
# Writing includes describing; an idempotent producer needs no more than the right to write (Kafka 3.0 and later).
set -eu

broker=${1:?usage: acls.sh HOST:PORT [OPTIONS OF kafka-acls.sh, such as --command-config FILE]}
shift
kafka=${KAFKA_HOME:-/opt/kafka}
agents=${AGENTS:-agent}

allow() {
  "$kafka/bin/kafka-acls.sh" --bootstrap-server "$broker" $options --add --force "$@" > /dev/null
}
options=$*

# An agent sends what it sees, and reads nothing but what evidence it is asked for.
for agent in $agents; do
  allow --allow-principal "User:$agent" --operation Write \
    --topic otlp_spans --topic otlp_metrics --topic otlp_logs --topic whichrank.blocks
  allow --allow-principal "User:$agent" --operation Read --topic whichrank.requests
done

# People label and acknowledge incidents and announce plans; whichrank takes that from this topic alone. They read what
# was concluded. Whoever is given this user may silence pages by a plan: it is nobody else's.
allow --allow-principal User:operator --operation Write --operation Read --topic whichrank.words
allow --allow-principal User:operator --operation Read \
  --topic whichrank.incidents --topic whichrank.findings --topic otlp_logs

# A processor reads all of that and checks how the topics are set, writes what it concludes, and keeps others of its
# name out (transactional id).
allow --allow-principal User:processor --operation Read --operation DescribeConfigs \
  --topic otlp_spans --topic otlp_metrics --topic otlp_logs --topic whichrank.blocks --topic whichrank.clock \
  --topic whichrank.findings --topic whichrank.incidents --topic whichrank.requests --topic whichrank.dlq \
  --topic whichrank.words
allow --allow-principal User:processor --operation Write \
  --topic otlp_spans --topic otlp_metrics --topic otlp_logs --topic whichrank.clock \
  --topic whichrank.findings --topic whichrank.incidents --topic whichrank.requests --topic whichrank.dlq
allow --allow-principal User:processor --operation Write --operation Describe \
  --transactional-id whichrank --resource-pattern-type prefixed

# With FLINK set the processor runs on Flink: it writes beats into all that it reads (docs/decisions/0013-flink.md).
if [ -n "${FLINK:-}" ]; then
  allow --allow-principal User:processor --operation Write --topic whichrank.blocks --topic whichrank.words
fi

# The Collector reads what is for people, and remembers how far.
allow --allow-principal User:collector --operation Read \
  --topic otlp_spans --topic otlp_metrics --topic otlp_logs
allow --allow-principal User:collector --operation Read --group whichrank-bridge

# The intake brings telemetry of others, and reads nothing.
allow --allow-principal User:intake --operation Write \
  --topic otlp_spans --topic otlp_metrics --topic otlp_logs

echo "kafka: the users $agents, operator, processor, collector and intake may now do what they must"
