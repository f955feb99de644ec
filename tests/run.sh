#!/bin/sh
# Runs test programs one after the other and closes with the totals on one line.
# usage: tests/run.sh PROGRAM...
# Each program is a cmocka runner; its own report is shown when something failed or was skipped.
set -u
if [ $# -eq 0 ]; then
    echo "tests/run.sh: no test program has such a name" >&2
    exit 1
fi
passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for program in "$@"; do
    start=$(date +%s)
    "$program" >"$log" 2>&1
    status=$?
    ok=$(grep -c '^\[       OK \]' "$log")
    skip=$(grep -c '^\[  SKIPPED \] [^0-9]' "$log")
    bad=$(grep -c '^\[  FAILED  \] [^0-9]' "$log")
    # cmocka lists failed tests twice (when they fail and in the summary).
    bad=$(((bad + 1) / 2))
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
        bad=1 # it crashed before it could report
    fi
    printf '%-34s %4d passed' "$(basename "$program")" "$ok"
    [ "$skip" -gt 0 ] && printf ', %d skipped' "$skip"
    [ "$bad" -gt 0 ] && printf ', %d FAILED (exit status %d)' "$bad" "$status"
    printf '  (%d s)\n' $(($(date +%s) - start))
    if [ "$bad" -gt 0 ]; then
        sed 's/^/    /' "$log"
    else
        # Tests say on a line of their own why they did not run.
        grep '^skipped:' "$log" | sed 's/^/    /'
    fi
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
done
echo
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
