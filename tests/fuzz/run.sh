#!/bin/sh
# Runs fuzz targets one after the other, each for $FUZZ_TIME seconds on one core.
# usage: tests/fuzz/run.sh BUILD TARGET...
# What libFuzzer finds worth keeping stays in BUILD/corpus/TARGET for the next run; an input that
# breaks a target is left in BUILD/found and named in the output, and the exit status is 1.
set -u
build=$1
shift
status=0
for target in "$@"; do
    corpus=$build/corpus/$target
    mkdir -p "$corpus" "$build/found"
    dictionary=tests/fuzz/$target.dict
    set -- -max_total_time="${FUZZ_TIME:-60}" -timeout=5 -rss_limit_mb=1024 -malloc_limit_mb=300 \
        -max_len=65536 -print_final_stats=1 -verbosity=1 \
        -artifact_prefix="$build/found/$target-"
    [ -f "$dictionary" ] && set -- "$@" -dict="$dictionary"
    if "$build/fuzz_$target" "$@" "$corpus" "tests/fuzz/corpus/$target" >"$build/$target.log" 2>&1
    then
        result=ok
    else
        result="BROKEN, see $build/$target.log"
        status=1
    fi
    printf '%-16s %10s executions, %s\n' "$target" \
        "$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$target.log")" "$result"
done
exit $status
