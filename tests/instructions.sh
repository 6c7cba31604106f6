#!/usr/bin/env bash
# Counts the instructions that the pure code executes, with valgrind's callgrind (Debian: valgrind), and compares them with
# tests/instructions/baseline.txt. Fails if a case needs over 2 % more than its baseline, unless that is of another compiler or kind
# of processor.
#
#   tests/instructions.sh            # all cases
#   tests/instructions.sh ledger     # the cases with `ledger` in their names
#   tests/instructions.sh --save     # all cases, and writes the baseline
#
# Save a new baseline in the commit that changes the counts for a good reason: more work for a feature, fewer instructions, or
# another compiler or dependency. Say in the commit's body which cases changed, and why. The counts depend on the compiler, and
# a little on the processor and the C library. So measure the parent commit on the same machine before you blame a change.
set -euo pipefail
cd "$(dirname "$0")/.."
baseline=tests/instructions/baseline.txt
target=${CARGO_TARGET_DIR:-target}
limit=1.02

command -v valgrind >/dev/null || { echo "valgrind is not installed: apt-get install valgrind" >&2 && exit 1; }
# Release builds have no symbols, and callgrind looks for functions by name. One codegen unit per crate, because with more, a move
# of code elsewhere in the crate changes what the compiler inlines: `AckBatcher::delivered` alone made 11 % of a case.
one_unit=()
for package in batchwright-contract batchwright-framework batchwright-store instructions; do one_unit+=(--config "profile.release.package.$package.codegen-units=1"); done
cargo rustc --quiet --release "${one_unit[@]}" -p instructions --bin instructions -- -C strip=none
binary=$target/release/instructions

save='' only=${1:-}
[ "$only" != --save ] || { save=yes only=''; }
made_by="$(rustc --version), $(uname -m)"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
echo "# instructions per iteration, $made_by" >"$folder/baseline"
is_comparable=1
grep -qF "$made_by" "$baseline" || { is_comparable=0 && echo "The baseline is not of $made_by, so more instructions are no failure."; }

status=0
printf '%-24s %12s %12s %7s\n' case instructions baseline ratio
while read -r name iterations; do
    [[ $name == *$only* ]] || continue
    # The count starts at the call of such a function and stops at its return.
    valgrind --tool=callgrind --toggle-collect='instructions::measured::*' --callgrind-out-file=/dev/null \
        "$binary" "$name" 2>"$folder/log" || { cat "$folder/log" >&2 && exit 1; }
    count=$(sed -n 's/.*Collected : \([0-9]*\).*/\1/p' "$folder/log")
    count=$((${count:-0} / iterations))
    [ "$count" -gt 0 ] || { echo "$name: callgrind has not found the function to measure" >&2 && exit 1; }
    echo "$name $count" >>"$folder/baseline"
    before=$(awk -v name="$name" '$1 == name { print $2 }' "$baseline" 2>/dev/null || true)
    awk -v name="$name" -v count="$count" -v before="$before" -v limit="$limit" -v fails="$is_comparable" 'BEGIN {
        if (!before) { printf "%-24s %12d %12s %7s\n", name, count, "-", "-"; exit }
        more = (count > before * limit)
        printf "%-24s %12d %12d %7.3f%s\n", name, count, before, count / before, more ? "  more" : ""
        exit more && fails
    }' || status=1
done < <("$binary")

[ -z "$save" ] || { cp "$folder/baseline" "$baseline" && status=0; }
exit $status
