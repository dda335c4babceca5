#!/usr/bin/env bash
# deb and rpm of whichrank, for one minor version of Python: that of the machines that it is for.
#
#   build.sh FOLDER [PYTHON]        PYTHON: 3.10 to 3.14; the one of /usr/bin/python3
#
# INTERPRETER: where it is on those machines, if not /usr/bin/pythonPYTHON.
# In it are the wheel and its dependencies, pinned with hashes (requirements/image.txt), as a virtual environment whose
# interpreter is the distribution's own: no package of the distribution's Python is used or touched, nothing is fetched
# at installation. A zipapp would not do (modules in C), nor an environment as venv makes it (it names this machine's Python).
#
# Needs uv (.venv/bin/uv) and Go; NFPM names an nfpm that is there already. whichrank's own C modules are of the stable
# ABI: one wheel for all versions.
set -euo pipefail
cd "$(dirname "$0")/../.."

NFPM_VERSION=v2.45.2 # later ones need modules that Go's proxy does not have
out=${1:?usage: build.sh FOLDER [PYTHON]}
python=${2:-$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')}
interpreter=${INTERPRETER:-/usr/bin/python$python}
uv=${UV:-.venv/bin/uv}
case $(uname -m) in
  x86_64) arch=amd64 ;;
  aarch64) arch=arm64 ;;
  *) echo "packages: $(uname -m) is not known here" >&2; exit 1 ;;
esac
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

home=$work/opt/whichrank
site=$home/lib/python$python/site-packages
mkdir -p "$home/bin" "$site"
printf 'home = %s\ninclude-system-site-packages = false\nversion = %s\n' "$(dirname "$interpreter")" "$python" > "$home/pyvenv.cfg"
ln -s "$interpreter" "$home/bin/python$python"
ln -s "python$python" "$home/bin/python3"
ln -s python3 "$home/bin/python"

"$uv" build --quiet --wheel --no-build-isolation --python .venv/bin/python --out-dir "$work/wheel" .
platform=$(uname -m)-manylinux_2_28
"$uv" pip install --quiet --target "$site" --python-version "$python" --python-platform "$platform" \
  --only-binary :all: --no-config --require-hashes -r requirements/image.txt
"$uv" pip install --quiet --target "$site" --python-version "$python" --python-platform "$platform" \
  --only-binary :all: --no-config --no-deps "$work"/wheel/*.whl
# The one program among them that is run: for stacks.
mv "$site/bin/py-spy" "$home/bin/"
rm -rf "$site/bin" "$site/.lock"
# -I: neither the caller's folder nor his variables decide what root runs.
cat > "$home/bin/whichrank" << 'PROGRAM'
#!/opt/whichrank/bin/python3 -I
import sys

from whichrank.commands.entry import main

sys.exit(main())
PROGRAM
chmod 755 "$home/bin/whichrank"
chmod -R go-w,a+rX "$home"

export PACKAGE_ARCH=$arch PACKAGE_PYTHON=$python PACKAGE_TREE=$work
PACKAGE_VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml | head -1)
export PACKAGE_VERSION
if [ -z "${NFPM:-}" ]; then
  GOBIN=$work/bin CGO_ENABLED=0 GOFLAGS=-trimpath GOWORK=off \
    go install "github.com/goreleaser/nfpm/v2/cmd/nfpm@$NFPM_VERSION"
  NFPM=$work/bin/nfpm
fi
for packager in deb rpm; do
  "$NFPM" package --config deploy/packages/nfpm.yaml --packager "$packager" --target "$out/"
done
