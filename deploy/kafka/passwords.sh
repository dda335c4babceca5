#!/bin/sh
# A random password for each of Kafka's users, for docker-compose.yml. What is there already stays.
set -eu

folder=${1:?usage: passwords.sh FOLDER}
umask 077
mkdir -p "$folder"
for user in admin agent operator processor collector intake; do
  file=$folder/kafka_${user}_password
  if [ ! -s "$file" ]; then
    word=$(openssl rand -hex 24)
    printf %s "$word" > "$file"
  fi
  # The folder keeps others out; the containers that get the file run as other users.
  chmod 644 "$file"
done
chmod 700 "$folder"
echo "passwords: $folder has one for each of admin, agent, operator, processor, collector, intake"
