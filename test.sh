#!/usr/bin/env bash
# All checks and all tests, as continuous integration runs them. Ends with `N passed, N failed`.
#
# The tests need PostgreSQL and RabbitMQ. Their servers are started for this run and stopped after it, unless DATABASE_URL and
# AMQP_URL name running ones; Debian's packages are installed when they are missing and this may be done without a question.
# Nothing else runs as root.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
export INSTA_UPDATE=no CARGO_TERM_COLOR=never CARGO_TERM_QUIET=false

passed=0
failures=() # what failed besides tests: each counts as one

finish() {
    local failed=$((${1:-0} + ${#failures[@]}))
    [ ${#failures[@]} -eq 0 ] || printf 'failed: %s\n' "${failures[@]}"
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ] && exit 0
    exit 1
}

check() {
    local name=$1
    shift
    echo "== $name: $*"
    "$@" || { failures+=("$name") && false; }
}

# --- the servers -----------------------------------------------------------------------------------------------------------

missing_packages() {
    compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null || {
        # Another's server needs only the client.
        if [ -n "${DATABASE_URL:-}" ]; then command -v psql >/dev/null || echo postgresql-client; else echo postgresql; fi
    }
    [ -n "${AMQP_URL:-}" ] || [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || command -v rabbitmq-server >/dev/null || echo rabbitmq-server
}

install_servers() {
    local packages as_root=
    packages=$(missing_packages | tr '\n' ' ')
    [ -n "$packages" ] || return 0

    [ "$(id -u)" -eq 0 ] || as_root='sudo -n'
    # shellcheck disable=SC2086 # both are lists of words
    if command -v apt-get >/dev/null && $as_root true 2>/dev/null; then
        echo "== installing $packages"
        local apt="$as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300"
        $apt update
        # Where services cannot start (containers), the installation may end with an error although everything is there.
        $apt install --no-install-recommends $packages || true
    fi
    packages=$(missing_packages | tr '\n' ' ')
    [ -n "$packages" ] || return 0
    echo "The tests need servers that are not installed here. On Debian or Ubuntu: apt-get install $packages"
    echo "Their services are not needed and may stay off. Elsewhere set DATABASE_URL and AMQP_URL to running servers."
    return 1
}

# --- what ran --------------------------------------------------------------------------------------------------------------

# Reads what `cargo test` prints; prints one line for each layer: name, passed, failed, ignored. `cargo` runs the unit tests of a
# package first, so a line `Running tests/…` belongs to the package of the last `Running unittests …`.
layers() {
    awk '
        function close_binary() { if (open) { failed[layer]++; print "no result: " binary > "/dev/stderr" } open = 0 }
        function begin(name) { close_binary(); binary = $0; layer = name; open = 1 }
        function base(path) { sub(/.*\//, "", path); sub(/-[0-9a-f]+(\.exe)?\)$/, "", path); return path }

        /^ *Running unittests / {
            package = base($NF)
            if (package == "contract") begin("wire")
            else if (package == "example_worker" || package == "first_worker") begin("examples")
            else if (package == "harness" || package == "servers" || package == "tests") begin("harness")
            else begin("rules")
            next
        }
        /^ *Running [^ ]+\.rs \(/ {
            name = base($NF)
            if (name ~ /^(architecture|simulation|system)/) { match(name, /^[a-z]+/); begin(substr(name, 1, RLENGTH)) }
            else if (name ~ /conformance/) begin("conformance")
            else if (package == "contract") begin("wire")
            else if (package == "job_service") begin("API")
            else if (package == "example_worker") begin("examples")
            else if (package == "harness") begin("harness")
            else if (package == "tests" || package == "batchwright") begin("system")
            else begin("rules")
            next
        }
        /^ *Doc-tests / { begin("examples"); next }
        /^test result: / {
            for (i = 2; i < NF; i++) {
                if ($(i + 1) == "passed;") passed[layer] += $i
                if ($(i + 1) == "failed;") failed[layer] += $i
                if ($(i + 1) == "ignored;") ignored[layer] += $i
            }
            open = 0
        }
        END {
            close_binary()
            count = split("rules wire conformance API system simulation architecture examples harness", order, " ")
            for (i = 1; i <= count; i++) print order[i], passed[order[i]] + 0, failed[order[i]] + 0, ignored[order[i]] + 0
        }
    ' "$1"
}

# --- the first worker ------------------------------------------------------------------------------------------------------

# The guide's example is no member of the workspace, just as no reader's worker is one. It is built with the same versions and, where
# that can be, the same settings, so that most of what it needs is there already.
first_worker() {
    local settings=(--config 'profile.dev.debug="line-tables-only"' --config 'profile.dev.build-override.opt-level=0'
        --config 'profile.dev.package."*".debug=false' --config 'profile.dev.package.serde_json.opt-level=2'
        --config 'profile.dev.package.libsqlite3-sys.opt-level=2')
    for part in batchwright framework contract store job-service batch-worker tracking-worker example-worker; do
        settings+=(--config "profile.dev.package.$part.debug=\"line-tables-only\"")
    done
    cp Cargo.lock docs/first-worker/Cargo.lock
    cargo test --manifest-path docs/first-worker/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}" "${settings[@]}"
}

# --- the run ---------------------------------------------------------------------------------------------------------------

install_servers || { failures+=("the servers are not installed"); finish; }

check format cargo fmt --all --check
check clippy cargo clippy --workspace --all-targets -- -D warnings
check "format of the first worker" rustfmt --check --edition 2024 docs/first-worker/src/main.rs

# Built before the servers start: they need not wait, and who cannot build need not wait for them.
check build cargo test --workspace --no-run || finish
# Not `cargo run`: it would pass its own variables on to the inner cargo, which builds again what depends on them.
servers=$(cargo build -q -p harness --bin servers --message-format=json | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
[ -x "$servers" ] || { failures+=("the binary servers cannot be built"); finish; }

log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "== tests"
"$servers" cargo test --workspace --no-fail-fast 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
echo "== the first worker"
first_worker 2>&1 | tee -a "$log"
[ "${PIPESTATUS[0]}" -eq 0 ] || failures+=("the first worker")

failed=0
echo
printf '%-14s %6s %6s %7s\n' layer passed failed ignored
while read -r layer ok bad ignored; do
    printf '%-14s %6d %6d %7d\n' "$layer" "$ok" "$bad" "$ignored"
    passed=$((passed + ok)) failed=$((failed + bad))
    [ $((ok + bad)) -gt 0 ] || failures+=("no test of the layer $layer ran")
done < <(layers "$log")
[ "$status" -eq 0 ] || [ "$failed" -gt 0 ] || failures+=("cargo test ended with $status")
finish "$failed"
