#!/usr/bin/env bash
# Makes the virtual environment and everything in it. Idempotent; called by `make setup`.
set -euo pipefail
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "torchloom needs Python 3.11 or newer; set PYTHON=/path/to/python3.11 and try again." >&2
  exit 2
fi
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
echo "installing packages (a minute the first time)…"
pip() { "$VENV/bin/python" -m pip install -q --disable-pip-version-check "$@"; }
# Where the lock was made for this platform, pip takes only files with a known hash. torch is apart: which of its
# builds is right differs from machine to machine.
platform=$("$VENV/bin/python" -c 'import platform as p, sys; print(sys.implementation.cache_tag, p.system(), p.machine())')
if grep -q "for: $platform\$" requirements.lock; then
  pip --require-hashes --no-deps -r requirements.lock
  pip -c constraints.txt torch==2.13.0
  pip --no-deps --no-build-isolation -e .
else
  echo "no hashes for $platform: packages are pinned by version only"
  pip -c constraints.txt torch==2.13.0
  pip -c constraints.txt -e '.[dev,integrations]'
fi
# The stable torchft has the module name of the nightly: tests of it put this directory on PYTHONPATH.
if [ ! -d "$VENV/torchft-stable/torchft" ]; then
  if grep -q "for: $platform\$" requirements-torchft-stable.lock; then
    pip --require-hashes --no-deps --target "$VENV/torchft-stable" -r requirements-torchft-stable.lock
  else
    pip --no-deps --target "$VENV/torchft-stable" torchft==0.2.0
  fi
fi
"$VENV/bin/python" -m torchloom.probe.native
# Tests of the page need a browser, those of Slurm its daemons. A new CI machine has neither; nobody else's is changed.
if [ "${CI:-}" = true ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  missing=""
  command -v chromium >/dev/null || missing="chromium"
  command -v slurmctld >/dev/null && command -v munged >/dev/null || missing="$missing slurm-wlm munge"
  if [ -n "$missing" ]; then
    echo "installing for the tests: $missing…"
    apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
  fi
fi
if [ "${CI:-}" = true ]; then
  # Without it one test says so; everything else is worth running all the same.
  VENV=$VENV bash "$(dirname "$0")/get_promtool.sh" || echo "promtool could not be fetched" >&2
fi
