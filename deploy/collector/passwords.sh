#!/bin/sh
# The token that whoever sends OTLP to the intake shows ("authorization=Bearer TOKEN" in OTEL_EXPORTER_OTLP_HEADERS), for
# docker-compose.yml. More tokens may stand in the file, one a line. What is there already stays.
set -eu

folder=${1:?usage: passwords.sh FOLDER}
umask 077
mkdir -p "$folder"
token=$folder/intake_token
if [ ! -s "$token" ]; then
  openssl rand -hex 24 > "$token"
fi
# The folder keeps others out; the container that gets the file runs as another user.
chmod 700 "$folder"
chmod 644 "$token"
echo "passwords: $token lets senders of OTLP in"
