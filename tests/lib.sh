# lib.sh - sourced by test scripts: one line per check, in the form that tests/run.sh counts.
#
# check NAME COMMAND...  runs COMMAND, prints "ok NAME" or "not ok NAME" with its output; never ends the script.
# expect NAME STATUS REGEX COMMAND...  the same for exit status and stderr (exactly one line "error:" is asked for when
# STATUS is not 0 or 130); REGEX may be empty. equal NAME WANTED GOT compares two strings.
# Variables: BIN (commands), TMP (removed at the end), SHARED (test data, may be empty), ROOT.
set -u
export LC_ALL=C
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BUILD=$(cd "${BUILD:-build}" && pwd)
BIN=$BUILD/bin
TMP=$(mktemp -d "${TMPDIR:-/tmp}/tessera-test.XXXXXX")
trap 'rm -rf "$TMP"' EXIT
SHARED=
for d in "${TESS_SHARED:-/nonexistent}" "$ROOT/../shared" "$ROOT/../../shared"; do
    [ -d "$d/models" ] && SHARED=$(cd "$d" && pwd) && break
done
FAILED=0

pass() { echo "ok $*"; }
fail() {
    echo "not ok $*"
    FAILED=1
}
skip() { echo "skip: $*"; }
finish() { exit "$FAILED"; }

check() {
    local name=$1 rc=0
    shift
    "$@" >"$TMP/check.out" 2>&1 || rc=$?
    if [ "$rc" -eq 0 ]; then pass "$name"; else
        fail "$name (status $rc)"
        tail -n 20 "$TMP/check.out"
    fi
}

expect() {
    local name=$1 status=$2 regex=$3 rc=0 errors
    shift 3
    timeout 120 "$@" >"$TMP/expect.out" 2>"$TMP/expect.err" </dev/null || rc=$?
    errors=$(grep -c '^error: ' "$TMP/expect.err")
    if [ "$rc" -eq "$status" ] && { [ -z "$regex" ] || grep -qE -- "$regex" "$TMP/expect.err"; } &&
        { [ "$status" -eq 0 ] || [ "$status" -eq 130 ] || [ "$errors" -eq 1 ]; }; then
        pass "$name"
    else
        fail "$name: status $rc, wanted $status and stderr like /$regex/"
        head -n 10 "$TMP/expect.err"
    fi
}

equal() {
    if [ "$2" = "$3" ]; then pass "$1"; else
        fail "$1"
        printf 'wanted: %s\ngot:    %s\n' "$2" "$3" | head -c 2000
        echo
    fi
}
