#!/bin/sh
# Makes a Flink home of the Python package apache-flink, as Flink's scripts want one: bin/, lib/, opt/, conf/.
#
#   home.sh PYTHON FOLDER JARS [KEY=VALUE ...]
#
# PYTHON: of the environment that has the extra [flink]. JARS: the folder of fetch.sh. KEY=VALUE: go into conf/config.yaml,
# over what is in config.yaml beside this script. PYTHON_PATH: more folders in which whichrank is found, with colons.
set -eu

python=${1:?usage: home.sh PYTHON FOLDER JARS [KEY=VALUE ...]}
target=${2:?usage: home.sh PYTHON FOLDER JARS [KEY=VALUE ...]}
jars=${3:?usage: home.sh PYTHON FOLDER JARS [KEY=VALUE ...]}
shift 3
here=$(cd "$(dirname "$0")" && pwd)
pyflink=$("$python" -c 'import importlib.util as u; print(u.find_spec("pyflink").submodule_search_locations[0])')
packages=$(dirname "$pyflink")

mkdir -p "$target/bin" "$target/lib" "$target/opt" "$target/conf" "$target/log" "$target/plugins" "$target/tmp"
target=$(cd "$target" && pwd)
# Its scripts look for the home from where they really lie, and follow no link of a folder.
cp -R "$pyflink/bin/." "$target/bin/"
for jar in "$pyflink"/lib/*.jar "$jars"/*.jar "$pyflink"/opt/flink-python-*.jar; do ln -sf "$jar" "$target/lib/"; done
for jar in "$pyflink"/opt/flink-python-*.jar; do ln -sf "$jar" "$target/opt/"; done
cp "$pyflink"/conf/log4j*.properties "$target/conf/"
chmod +x "$target"/bin/*.sh "$target/bin/flink"

{
  echo "# Written by deploy/flink/home.sh."
  grep -v -e '^#' -e '^$' "$here/config.yaml"
  sed -n 's/^ *all: /env.java.opts.all: /p' "$pyflink/conf/config.yaml"
  echo "python.executable: $python"
  echo "python.client.executable: $python"
  echo "python.pythonpath: $packages${PYTHON_PATH:+:$PYTHON_PATH}"
  for pair in "$@"; do echo "${pair%%=*}: ${pair#*=}"; done
} | awk -F ': ' '{ last[$1] = $0; if (!($1 in place)) { place[$1] = ++count; key[count] = $1 } }
  END { for (i = 1; i <= count; i++) print last[key[i]] }' > "$target/conf/config.yaml"
