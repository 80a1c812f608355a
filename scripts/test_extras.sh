#!/usr/bin/env bash
# Resolve the extras of setup.cfg, all or those in the arguments, without installing them. Needs a
# package index.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
python=$(find_python)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
pip="$work/venv/bin/python -m pip --disable-pip-version-check"
$pip install --quiet --upgrade pip
extras=$("$python" - <<'PYTHON'
import configparser

metadata = configparser.ConfigParser(interpolation=None)
metadata.read("setup.cfg", encoding="utf-8")
print(" ".join(metadata["options.extras_require"]))
PYTHON
)
mkdir "$work/source"  # a copy, because pip writes metadata into the source folder
cp -R mnmt_jax gin_configs docs setup.py setup.cfg pyproject.toml MANIFEST.in README.md LICENSE "$work/source"
cd "$work/source"
failed=0
for extra in ${*:-$extras}; do
    echo "resolving mnmt-jax[$extra]"
    if ! $pip install --dry-run --ignore-installed --quiet ".[$extra]" >"$work/log" 2>&1; then
        tail -n 15 "$work/log" >&2
        echo "error: mnmt-jax[$extra] cannot be installed" >&2
        failed=1
    fi
done
exit $failed
