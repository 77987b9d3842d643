#!/usr/bin/env bash
# Runs test programs and test scripts and counts: run.sh PROGRAM... ; called by make.
#
# A cmocka program is asked for TAP output; a script (.sh) prints TAP-like lines itself ("ok NAME", "not ok NAME",
# "skip: why"), see tests/lib.sh. What ends with a non-zero status, a signal or a timeout without a "not ok" line counts
# as one failure, and so does a program that reports nothing at all. Skipped tests are counted and named apart.
#
# Environment: BUILD; JOBS (tests run at once); TEST_TIMEOUT in seconds; TEST_WRAPPER (a command put before a program).
# The last line is "N passed, N failed"; it is also written to $BUILD/test-summary. Logs: $BUILD/test-logs.
set -u
export LC_ALL=C BUILD=${BUILD:-build}
export CMOCKA_MESSAGE_OUTPUT=TAP TEST_WRAPPER=${TEST_WRAPPER:-} TEST_TIMEOUT=${TEST_TIMEOUT:-900}
gguf=$BUILD/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
[ ! -f "$gguf" ] || export TESS_SMOLLM2_GGUF=${TESS_SMOLLM2_GGUF:-$(realpath "$gguf")}
logs=$BUILD/test-logs
mkdir -p "$logs"
rm -f "$logs"/* "$BUILD/test-summary"

run_one() {
    local name log start=$SECONDS rc=0
    name=$(basename "$1" .sh) log=$2/$name.log
    case $1 in
    *.sh) timeout -k 10 "$TEST_TIMEOUT" bash "$1" >"$log" 2>&1 </dev/null || rc=$? ;;
    *) timeout -k 10 "$TEST_TIMEOUT" $TEST_WRAPPER "$1" >"$log" 2>&1 </dev/null || rc=$? ;;
    esac
    echo "$rc $((SECONDS - start))" >"$2/$name.rc"
}
export -f run_one
printf '%s\0' "$@" | xargs -0 -n 1 -P "${JOBS:-$(nproc)}" bash -c 'run_one "$2" "$1"' run_one "$logs"

count() { grep -cE -- "$1" "$log"; }
passed=0 failed=0 skipped=0
for t in "$@"; do
    name=$(basename "$t" .sh) log=$logs/$(basename "$t" .sh).log
    read -r rc seconds <"$logs/$name.rc"
    # cmocka 1.1 prints a skipped test as "not ok N # SKIP".
    tap_skips=$(count '^(not )?ok .*# *SKIP') said_skips=$(count '^skip:')
    ok=$(($(count '^ok ') - $(count '^ok .*# *SKIP')))
    bad=$(($(count '^not ok ') - $(count '^not ok .*# *SKIP')))
    skips=$((tap_skips > said_skips ? tap_skips : said_skips))
    [ "$rc" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
    [ $((ok + bad + skips)) -gt 0 ] || bad=1
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skips))
    printf '%-20s %4d passed %3d failed %3d skipped %4ds' "$name" "$ok" "$bad" "$skips" "$seconds"
    [ "$rc" -eq 0 ] || printf '   exit status %s' "$rc"
    echo
    [ "$bad" -eq 0 ] || tail -n 60 "$log" | sed 's/^/    /'
    grep '^skip:' "$log" | sort -u | sed 's/^/    /'
done
[ "$skipped" -eq 0 ] || echo "$skipped skipped (reasons above)"
echo "$passed passed, $failed failed" | tee "$BUILD/test-summary"
[ "$failed" -eq 0 ]
