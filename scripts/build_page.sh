#!/usr/bin/env bash
# Builds the page into src/torchloom/web/dist. Called by `make setup`; does nothing without Node.
set -euo pipefail
cd "$(dirname "$0")/../src/torchloom/web"
if ! command -v npm >/dev/null || ! node -e 'process.exit(Number(process.versions.node.split(".")[0]) < 20 ? 1 : 0)'; then
  echo "the page is not built, because Node 20 or newer is not here; everything else works without it."
  [ "${CI:-}" != true ] || { echo "in CI it must be built." >&2; exit 1; }
  exit 0
fi
echo "building the page…"
# Not `npm ci`: it wants every optional binary of every platform in the lock file, and registries may lack some.
npm install --silent --no-save --no-audit --no-fund
npm run --silent build -- --logLevel warn
