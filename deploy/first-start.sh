#!/bin/sh
# Before the first start: .env with a random password of Grafana's administrator, and passwords for each of Kafka's users, a
# token for senders of OTLP, and one for Prometheus. Only you can read them. What is there already stays.
set -eu

cd "$(dirname "$0")/.."
umask 077
[ -e .env ] || cp .env.example .env
chmod 600 .env
if grep -q '^GRAFANA_ADMIN_PASSWORD=$' .env; then
  word=$(openssl rand -hex 16)
  sed -i "s/^GRAFANA_ADMIN_PASSWORD=\$/GRAFANA_ADMIN_PASSWORD=$word/" .env
  echo "first-start: GRAFANA_ADMIN_PASSWORD is set in .env"
fi
folder=$(sed -n 's/^WHICHRANK_SECRETS=//p' .env)
deploy/kafka/passwords.sh "${folder:-secrets}"
deploy/collector/passwords.sh "${folder:-secrets}"
deploy/prometheus/passwords.sh "${folder:-secrets}"
