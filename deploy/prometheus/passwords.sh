#!/bin/sh
# The user of Prometheus, for docker-compose.yml: a random password in FOLDER/prometheus_password, and in
# FOLDER/prometheus_web what Prometheus asks for, with a bcrypt hash of it. What is there already stays.
#
#   passwords.sh FOLDER
set -eu

folder=${1:?usage: passwords.sh FOLDER}
password=$folder/prometheus_password web=$folder/prometheus_web
# Prometheus works the hash out for each request with a password that it has not seen lately, one at a time: at a higher
# cost wrong ones would hold up everybody else. Nobody tries out 192 random bits, whatever the cost.
cost=05

# bcrypt hash of the line in the file, by what is here; the password is on no command line.
with_htpasswd() { htpasswd -niB -C "$cost" whichrank < "$password" | sed -n 's/^whichrank://p'; }
with_perl() { perl -e 'print crypt(readline(STDIN), $ARGV[0])' "$salt" < "$password"; }
with_python3() { python3 -W ignore -c 'import crypt, sys; print(crypt.crypt(sys.stdin.readline(), sys.argv[1]))' "$salt" < "$password"; }
# The C library's crypt() answers with a weak hash, or none, where it does not know bcrypt.
is_bcrypt() {
  case $1 in
    '$2'[aby]"\$$cost\$"*) [ ${#1} -eq 60 ] ;;
    *) return 1 ;;
  esac
}

umask 077
mkdir -p "$folder"
if [ -s "$web" ] && [ ! -s "$password" ]; then
  echo "passwords: $web is there without $password: remove it, and both are made anew" >&2
  exit 1
fi
if [ ! -s "$password" ]; then
  word=$(openssl rand -hex 24)
  printf %s "$word" > "$password"
fi
if [ ! -s "$web" ]; then
  salt='$2b$'$cost'$'$(openssl rand -hex 11)
  hash=
  for program in htpasswd perl python3; do
    command -v "$program" > /dev/null || continue
    hash=$("with_$program" 2> /dev/null) || hash=
    ! is_bcrypt "$hash" || break
    hash=
  done
  if [ -z "$hash" ]; then
    echo "passwords: nothing here makes bcrypt hashes: install htpasswd (apache2-utils, httpd-tools) or perl, then run this again" >&2
    exit 1
  fi
  printf 'basic_auth_users:\n  whichrank: "%s"\n' "$hash" > "$web.new"
  mv "$web.new" "$web"
fi
# The folder keeps others out; the containers that get the files run as other users.
chmod 700 "$folder"
chmod 644 "$password" "$web"
echo "passwords: $folder has one of Prometheus' user whichrank"
