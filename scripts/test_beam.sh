#!/usr/bin/env bash
# Install Apache Beam and pytest into .venv-beam, and run the tests of preparation by Beam. It has an
# environment of its own because Beam needs older packages than the test extras.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
python=$(find_python)
if [ ! -e .venv-beam/installed ]; then
    "$python" -m venv .venv-beam
    .venv-beam/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[beam]" \
        pytest beartype jaxtyping
    touch .venv-beam/installed
fi
exec .venv-beam/bin/python -m pytest tests/beam tests/unit/test_preparation.py "$@"
