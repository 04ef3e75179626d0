#!/usr/bin/env bash
# Puts promtool into the virtual environment, from Debian's package, so that the alert rules can be tested.
# Installs nothing on the machine. Called by `make setup` in CI; does nothing where promtool is there already.
set -euo pipefail
VENV=${VENV:-.venv}
if command -v promtool >/dev/null || [ -x "$VENV/bin/promtool" ]; then exit 0; fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  echo "promtool is not here and there is no apt-get to fetch it; install Prometheus to test the alert rules." >&2
  exit 1
fi
echo "fetching promtool for the tests of the alert rules…"
target=$(realpath "$VENV/bin")
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
cd "$made"
fetch() { apt-get download -qq -o APT::Sandbox::User=root prometheus; }
fetch 2>/dev/null || { apt-get update -qq && fetch; }
dpkg-deb -x prometheus_*.deb content
install -m 755 content/usr/bin/promtool "$target/promtool"
