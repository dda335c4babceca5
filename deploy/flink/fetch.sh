#!/bin/sh
# Fetches what pom.xml names with Maven, and checks each file against jars.sha256.
#
#   fetch.sh FOLDER
set -eu

target=${1:?usage: fetch.sh FOLDER}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$target"
target=$(cd "$target" && pwd)
mvn -q -B -C -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$target" -DexcludeTransitive=true
cd "$target"
sha256sum --check --strict --quiet "$here/jars.sha256"
