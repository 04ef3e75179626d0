#!/usr/bin/env bash
# Runs what needs no torch on every other Python that is here: imports, command line, the unit tests of the core.
# Each gets a virtual environment of its own, .venv-X.Y; one that is not here is named and skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
TESTS=${TESTS:-tests/unit/core tests/unit/wire tests/unit/client tests/unit/api}
for version in ${PYTHONS:-3.12 3.13 3.14}; do
  python=
  for found in "$HOME"/.pyenv/versions/"$version".*/bin/python "python$version"; do
    if "$found" -c '' 2>/dev/null; then python=$found; fi
  done
  if [ -z "$python" ]; then
    echo "Python $version: not here, skipped"
    continue
  fi
  venv=.venv-$version
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt -e . \
    pytest pytest-timeout pytest-xdist hypothesis numpy prometheus-client ruff
  "$venv/bin/loom" --help >/dev/null
  "$venv/bin/python" -m pytest -q -n 2 -p no:cacheprovider $TESTS
  echo "Python $version: passed"
done
