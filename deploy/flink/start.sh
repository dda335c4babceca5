#!/bin/sh
# Entry of the image for Flink: what FLINK_PROPERTIES says goes over conf/config.yaml, a line per KEY: VALUE.
#
#   start.sh jobmanager | taskmanager | COMMAND ...
#
# The configuration is written to FLINK_CONF_DIR (default: /tmp/flink-conf), as the image itself is read-only.
set -eu

home=${FLINK_HOME:-/opt/flink}
FLINK_CONF_DIR=${FLINK_CONF_DIR:-/tmp/flink-conf}
FLINK_LOG_DIR=${FLINK_LOG_DIR:-/tmp}
FLINK_PID_DIR=${FLINK_PID_DIR:-/tmp}
export FLINK_CONF_DIR FLINK_LOG_DIR FLINK_PID_DIR
mkdir -p "$FLINK_CONF_DIR"
cp "$home"/conf/* "$FLINK_CONF_DIR/"
{ cat "$home/conf/config.yaml"; printf '%s\n' "${FLINK_PROPERTIES:-}"; } | grep ': ' | sed 's/^ *//' \
  | awk -F ': ' '{ last[$1] = $0 } END { for (key in last) print last[key] }' > "$FLINK_CONF_DIR/config.yaml"

case ${1:-} in
  jobmanager|taskmanager) exec "$home/bin/$1.sh" start-foreground ;;
  *) exec "$@" ;;
esac
