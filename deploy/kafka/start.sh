#!/bin/sh
# Starts the one Kafka node: puts its properties together, formats an empty data folder, becomes the broker.
#
# Read from KAFKA_CONFIG (default: the folder of this script): server.properties, and where they are mounted
# tls.properties and sasl.properties (empty: no users, compose.open.yaml). From KAFKA_SECRETS, with SASL: a file kafka_NAME_password for each user.
set -eu

config=${KAFKA_CONFIG:-$(dirname "$0")}
kafka=${KAFKA_HOME:-/opt/kafka}
secrets=${KAFKA_SECRETS:-/run/secrets}
properties=${KAFKA_PROPERTIES:-/tmp/server.properties}

protocol=PLAINTEXT
[ ! -e "$config/tls.properties" ] || protocol=SSL
[ ! -s "$config/sasl.properties" ] || protocol=SASL_$protocol

umask 077
{
  for part in server tls sasl; do
    [ ! -e "$config/$part.properties" ] || cat "$config/$part.properties"
  done
  echo "listener.security.protocol.map=CLIENT:$protocol,OUTSIDE:$protocol,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
  echo "advertised.listeners=CLIENT://kafka:9092,OUTSIDE://${KAFKA_OUTSIDE:-127.0.0.1:19092},INTERNAL://127.0.0.1:9094"
} > "$properties"

# Users exist from the first start on; later a password is changed with kafka-configs.sh (see docs/operations.md).
set -- format --ignore-formatted --cluster-id "${KAFKA_CLUSTER_ID:-d2hpY2hyYW5rLWthZmthMQ}" --config "$properties"
if [ -s "$config/sasl.properties" ]; then
  for user in admin agent operator processor collector intake; do
    file=$secrets/kafka_${user}_password
    [ -s "$file" ] || { echo "kafka: no password for the user $user: $file is missing or empty" >&2; exit 1; }
    set -- "$@" --add-scram "SCRAM-SHA-512=[name=$user,password=$(cat "$file")]"
  done
fi
"$kafka/bin/kafka-storage.sh" "$@"
export KAFKA_LOG4J_OPTS="-Dlog4j2.configurationFile=$config/log4j2.properties"
exec "$kafka/bin/kafka-server-start.sh" "$properties"
