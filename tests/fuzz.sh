#!/usr/bin/env bash
# Fuzzes the API against its published OpenAPI document with schemathesis (from PyPI), for as many cases as --max-examples says for
# each operation and phase. No answer may be a 5xx, have a status, a content type or a body that the document does not tell.
#
#   tests/fuzz.sh                                    # jobs in SQLite, messages in a file: nothing to install but Python
#   tests/fuzz.sh --database postgres://… --broker amqp://…
#
# What is given is given to `batchwright up`. CASES (default 50) is --max-examples, SEED makes a run again. Ends as schemathesis ends.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

folder=$(mktemp -d)
system=
trap '[ -z "$system" ] || kill "$system" 2>/dev/null; wait; rm -rf "$folder"' EXIT

python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet 'schemathesis>=4.32,<5'
cargo build --quiet -p batchwright-cli
"$target/debug/batchwright" up --data "$folder/data" --listen 127.0.0.1:0 "$@" >"$folder/urls" 2>"$folder/log" &
system=$!
until grep -q ^health "$folder/urls"; do
    kill -0 "$system" 2>/dev/null || { cat "$folder/log" >&2 && exit 1; }
    sleep 0.1
done
url=$(sed -n 's|^Swagger UI *||p' "$folder/urls")

# It leaves files where it runs. A stream of events has no end to wait for.
cd "$folder"
"$folder/python/bin/schemathesis" run "${url}api-docs/openapi.json" --no-color --exclude-path-regex '/events$' \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
    --max-examples "${CASES:-50}" --continue-on-failure ${SEED:+--seed "$SEED"}
