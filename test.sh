#!/usr/bin/env bash
# Runs all checks and all tests, as continuous integration does. The last line is `N passed, N failed`; the lines before it say what
# was left out because a tool is not installed.
#
# The tests need PostgreSQL and RabbitMQ. Both servers are started for this run and stopped after it, unless DATABASE_URL and
# AMQP_URL name running ones. Missing servers, Prometheus for one test, Chromium for those of the web page and mdBook for the
# documentation are installed from Debian's packages, where there are such, if that needs no password. Nothing else runs as root.
#
# What each test binary prints is in target/test-output. CONTRIBUTING.md says how to run a part of this.
#
# `./test.sh --long` simulates 10,000 seeds, and single faults at every step, as well, which takes an hour more on two processors.
# `./test.sh --instructions` compares the numbers of instructions that the pure code executes with those saved, as well, which takes some
# five minutes more; continuous integration does.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
long='' instructions=''
for option; do
    case $option in
        --long) long=yes ;;
        --instructions) instructions=yes ;;
        *) echo "usage: ./test.sh [--long] [--instructions]" >&2; exit 2 ;;
    esac
done
export INSTA_UPDATE=no CARGO_TERM_COLOR=never CARGO_TERM_QUIET=false
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=false # a fresh build is smaller and faster so; a panic still names its line
target=${CARGO_TARGET_DIR:-target}

passed=0
failed=0
failures=() # failed checks; each counts as one failure

finish() {
    [ ${#failures[@]} -eq 0 ] || printf 'failed: %s\n' "${failures[@]}"
    failed=$((failed + ${#failures[@]}))
    measure_cpu
    grep -ahoE 'left out: .*' "$output"/*.log 2>/dev/null | sort -u
    echo "time: $SECONDS s, $cpu cpu-s"
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ] && exit 0
    exit 1
}

# Runs a check and prints how long it took.
check() {
    local name=$1 began=$SECONDS cpu_before status=0
    shift
    measure_cpu
    cpu_before=$cpu
    echo "== $name: $*"
    "$@" || { status=1 failures+=("$name"); }
    measure_cpu
    echo "== $name took $((SECONDS - began)) s, $((cpu - cpu_before)) cpu-s"
    return $status
}

# Sets `cpu` to the processor time, user and system, of all commands so far, in whole seconds. The second line of `times` is
# about child processes: `0m3.024s 0m0.512s`. It is read from a file because a pipe would start a shell with times of its own.
measure_cpu() {
    times >"$scratch"
    cpu=$(awk 'END { gsub(/[ms]/, " "); printf "%d", $1 * 60 + $2 + $3 * 60 + $4 }' "$scratch")
}

scratch=$(mktemp)
trap 'rm -f "$scratch"' EXIT

# --- the servers -----------------------------------------------------------------------------------------------------------

missing_packages() {
    compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null || {
        # A server that is given needs only the client.
        if [ -n "${DATABASE_URL:-}" ]; then command -v psql >/dev/null || echo postgresql-client; else echo postgresql; fi
    }
    [ -n "${AMQP_URL:-}" ] || [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || command -v rabbitmq-server >/dev/null || echo rabbitmq-server
}

# One test tries the alert rules on a real Prometheus, some look at the web page with a real browser, and one builds the book. Without the
# packages they say so and pass. Not every release of Debian has mdBook.
wanted_packages() {
    missing_packages
    command -v prometheus >/dev/null || echo prometheus
    command -v chromium >/dev/null || echo chromium
    command -v chromedriver >/dev/null || echo chromium-driver
    command -v mdbook >/dev/null || [ -z "$(apt-cache show mdbook 2>/dev/null)" ] || echo mdbook
    [ -z "$instructions" ] || command -v valgrind >/dev/null || echo valgrind
}

install_servers() {
    local packages as_root=
    packages=$(wanted_packages | tr '\n' ' ')
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

# --- the build -------------------------------------------------------------------------------------------------------------

# Clippy's driver is the compiler plus the lints, so one build serves both: `cargo clippy` and `cargo test` would compile the
# workspace and all its dependencies twice. The driver applies to the workspace only, dependencies are compiled as usual.
lint_while_building() {
    local driver
    driver=$(rustc --print sysroot)/bin/clippy-driver
    [ -x "$driver" ] || driver=$(command -v clippy-driver) || {
        echo "clippy is not installed: rustup component add clippy"
        return 1
    }
    export RUSTC_WORKSPACE_WRAPPER=$driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
}

# Builds all test binaries; cargo's messages tell where they are.
build() {
    mkdir -p "$output" && cargo test --workspace --no-run --message-format=json-render-diagnostics >"$output/messages"
}

# Runs half of the seeds on each route of outputs, and single faults at every step.
simulate() {
    local binary
    binary=$(sed -n 's/.*"executable":"\([^"]*\/simulation-[^"]*\)".*/\1/p' "$output/messages" | tail -1)
    SIMULATION_RUNS=5000 timeout 10800 "$binary" >"$output/simulation-long" 2>&1 && return
    tail -60 "$output/simulation-long"
    return 1
}

# --- the run ---------------------------------------------------------------------------------------------------------------

output=$target/test-output
rm -f "$output"/*.log "$output/counts"
install_servers || { failures+=("the servers are not installed"); finish; }

check format cargo fmt --all --check
lint_while_building || { failures+=("clippy is not installed"); finish; }
check "build with clippy" build || finish

runner=$(sed -n 's/.*"executable":"\([^"]*\/run-tests\)".*/\1/p' "$output/messages" | tail -1)
[ -x "$runner" ] || { failures+=("the binary run-tests is not built"); finish; }
export RUSTDOC=$PWD/tests/rustdoc.sh # checks the documentation and the features as well
check tests "$runner" "$output/messages" "$output" "doc tests=cargo test --workspace --doc"
status=$?
if [ -s "$output/counts" ]; then
    read -r passed failed <"$output/counts"
    # The runner fails for its failed tests, which are counted already.
    [ "$status" -eq 0 ] || [ "$failed" -eq 0 ] || unset 'failures[-1]'
fi
[ -z "$long" ] || check "simulation of 10,000 seeds" simulate
# With the compiler itself: the baseline is not of its driver for lints.
[ -z "$instructions" ] || check "instruction counts" env -u RUSTC_WORKSPACE_WRAPPER tests/instructions.sh
finish
