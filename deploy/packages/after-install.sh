#!/bin/sh
# Nothing is enabled or started: first somebody says in /etc/whichrank/whichrank.toml where Kafka is.
set -e
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
  # An upgrade: what runs goes on with the new program.
  systemctl try-restart whichrank-agent.service whichrank-process.service || true
fi
