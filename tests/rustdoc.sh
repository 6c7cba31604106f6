#!/usr/bin/env bash
# Stands in for rustdoc while `cargo test --doc` runs. For each crate it documents the crate with warnings as errors and then runs
# the examples; it also compiles those that have features without them.
#
# `cargo doc` and `cargo check --no-default-features` would compile every dependency once more, in forms that no other step uses.
# Here the libraries of the tests serve for all of it. So a feature that a dependency lacks in such a choice is not noticed; code of
# ours that is used without its feature is.
set -euo pipefail

crate=
arguments=() # what rustdoc and rustc share
features=()
is_test=
previous=
for argument in "$@"; do
    case $previous in
        --test-args | --test-builder | --test-run-directory | --test-runtool | --test-runtool-arg) previous='' && continue ;;
        --crate-name) crate=$argument ;;
        --cfg) [[ $argument != feature=* ]] || { features+=("$argument") previous='' && continue; } ;;
    esac
    [ "$previous" != --cfg ] || arguments+=(--cfg "$argument")
    previous=$argument
    case $argument in
        --test) is_test=yes ;;
        --cfg | --test-*) ;;
        *) arguments+=("$argument") ;;
    esac
done

if [ -n "$is_test" ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    rustdoc "${arguments[@]}" "${features[@]/#/--cfg=}" -D warnings -A rustdoc::private-intra-doc-links \
        --document-private-items --out-dir "$folder"
    case $crate in
        batchwright_framework) choices=('' amqp embedded) ;;
        batchwright | batchwright_batch_worker | batchwright_job_service | batchwright_store) choices=('') ;;
        *) choices=() ;;
    esac
    for choice in "${choices[@]}"; do
        rustc "${arguments[@]}" ${choice:+"--cfg=feature=\"$choice\""} -D warnings --emit metadata --out-dir "$folder"
    done
fi
rustdoc "$@"
