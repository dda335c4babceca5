#!/bin/sh
# A certificate authority of your own and Kafka's certificate, for compose.tls.yaml. An organisation that has an
# authority uses that instead and only puts ca.crt and kafka.pem (key, then certificates) in the folder.
set -eu

folder=${1:?usage: certificates.sh FOLDER [FURTHER NAMES OR ADDRESSES OF THE BROKER ...]}
shift
days=825

umask 077
mkdir -p "$folder"
cd "$folder"
[ ! -e kafka.pem ] || { echo "certificates: $folder/kafka.pem is there already; remove it to make another" >&2; exit 1; }

names=DNS:kafka,DNS:localhost,IP:127.0.0.1
for name in "$@"; do
  case $name in
    *[!0-9.]*) names=$names,DNS:$name ;;
    *) names=$names,IP:$name ;;
  esac
done

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days "$days" -subj "/CN=whichrank authority" \
  -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign \
  -keyout ca.key -out ca.crt 2> /dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=kafka \
  -keyout kafka.key -out kafka.csr 2> /dev/null
printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\nauthorityKeyIdentifier=keyid\n' "$names" > kafka.ext
openssl x509 -req -in kafka.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days "$days" -extfile kafka.ext -out kafka.crt \
  2> /dev/null
cat kafka.key kafka.crt ca.crt > kafka.pem
rm kafka.key kafka.csr kafka.ext kafka.crt
# The folder keeps others out; the containers that get these files run as other users.
chmod 700 .
chmod 644 ca.crt kafka.pem
echo "certificates: $folder has ca.crt (for clients) and kafka.pem (for Kafka), valid for $names"
