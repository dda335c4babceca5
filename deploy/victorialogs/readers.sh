#!/bin/sh
# Who may read whose events: a token for each owner of jobs, with which his own rows can be read and no others (docs/operations.md).
#
#   readers.sh FOLDER OWNER...     a uid, or namespace/NAME, as in whichrank.job.owner
#
# Writes FOLDER/log_readers, the settings of vmauth (profile readers of docker-compose.yml), and a file with each token.
# Owners and tokens that are there already stay.
set -eu

folder=${1:?usage: readers.sh FOLDER OWNER...}
shift
umask 077
mkdir -p "$folder/log_reader_tokens"
for owner in "$@"; do
  case $owner in
    */*/* | *[!0-9A-Za-z./-]* | . | ..) echo "readers: $owner: not a uid, and not namespace/NAME" >&2; exit 2 ;;
  esac
  file=$folder/log_reader_tokens/$(printf %s "$owner" | tr / _)
  if [ ! -s "$file" ]; then
    token=$(openssl rand -hex 24)
    printf '%s %s\n' "$owner" "$token" > "$file"
  fi
done
{
  echo "users:"
  for file in "$folder"/log_reader_tokens/*; do
    [ -s "$file" ] || continue
    read -r owner token < "$file"
    echo "- bearer_token: \"$token\""
    echo "  url_map:"
    # Nothing but questions, and the store adds the owner to each of them, whatever else is asked.
    echo "  - src_paths: [\"/select/logsql/[a-z_]+\"]"
    echo "    url_prefix: \"http://victorialogs:9428/?extra_stream_filters=%7Bwhichrank.job.owner%3D%22$(printf %s "$owner" | sed 's,/,%2F,')%22%7D\""
  done
} > "$folder/log_readers.new"
# The folder keeps others out; the container that gets the file runs as another user.
chmod 700 "$folder"
chmod 644 "$folder/log_readers.new"
mv "$folder/log_readers.new" "$folder/log_readers"
echo "readers: $folder/log_readers, tokens in $folder/log_reader_tokens"
