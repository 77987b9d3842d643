#!/usr/bin/env bash
# mutate.sh [NAME...] - plants the faults of mutations.txt, all or those named, one at a time in a copy of the tree, and runs the
# test that must fail then. Prints a table; ends with 0 when every fault was caught. An entry takes about a minute of two cores.
#
# An entry that does not fit the sources any more is an error, and so is a test that fails without any fault, or a fault that does
# not compile. JOBS: parallel jobs of make; MAKE; TEST_WRAPPER (a command put before a program).
set -u
export LC_ALL=C CMOCKA_MESSAGE_OUTPUT=TAP
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
LIST=$ROOT/tests/cuemu/mutations.txt
TMP=$(mktemp -d "${TMPDIR:-/tmp}/tessera-mutate.XXXXXX")
trap 'rm -rf "$TMP"' EXIT
export BUILD=$TMP/build

# plant NAME SOURCE: prints the source with the fault; fails unless the old text is there exactly once.
plant() {
    awk -v name="$1" '
        function add(so_far, n) { return n > 1 ? so_far "\n" substr($0, 2) : substr($0, 2) }
        FNR == NR && /^=/ { on = $2 == name; next }
        FNR == NR { if (on && /^[- ]/) old = add(old, ++n_old); if (on && /^[+ ]/) new = add(new, ++n_new); next }
        { all = all $0 "\n" }
        END {
            at = index(all, old)
            rest = substr(all, at + 1)
            if (old == "" || at == 0 || index(rest, old)) exit 1
            printf "%s", substr(all, 1, at - 1) new substr(all, at + length(old))
        }' "$LIST" "$2"
}
# test_fails PROGRAM: runs it until its first failure; leaves its output in $TMP/log.
test_fails() {
    ${TEST_WRAPPER:-} timeout -k 5 300 stdbuf -oL "$BUILD/cuemu/tests/$1" 2>&1 </dev/null | awk '{ print; fflush() } /^not ok/ { bad = 1; exit } END { exit bad }' >"$TMP/log"
    [ "${PIPESTATUS[*]}" != "0 0" ]
}
build() { ${MAKE:-make} -C "$TMP/tree" -s -j"${JOBS:-$(nproc)}" CUDA=0 BUILD="$BUILD" "$@" >"$TMP/make.log" 2>&1; }
# What the failed test said: its name, and the report of the emulator or the first line of the message.
said() {
    local name report
    name=$(sed -n 's/^not ok [0-9]* - //p' "$TMP/log" | head -n 1)
    report=$(grep -m 1 -oE '(race|illegal|misaligned|uninitialized|hang|deadlock|barrier)[^:]*:?[^:]{0,60}' "$TMP/log" | head -n 1)
    echo "${name:-ended early}: ${report:-other values}" | tr '\n' ' '
}

mapfile -t entries < <(sed -n 's/^= *//p' "$LIST")
stale=0 chosen=() tests=()
for e in "${entries[@]}"; do
    read -r name file test <<<"$e"
    [ $# -eq 0 ] || [[ " $* " == *" $name "* ]] || continue
    plant "$name" "$ROOT/$file" >/dev/null || { echo "error: $name: its old text is not in $file, or more than once" && stale=1; }
    chosen+=("$e") tests+=("$test")
done
[ "$stale" -eq 0 ] && [ "${#chosen[@]}" -gt 0 ] || exit 2

mkdir "$TMP/tree" && (cd "$ROOT" && tar --exclude=./build --exclude=./.git -cf - .) | tar -xf - -C "$TMP/tree" || exit 2
mapfile -t tests < <(printf '%s\n' "${tests[@]}" | sort -u)
build "${tests[@]/#/$BUILD/cuemu/tests/}" || { cat "$TMP/make.log" && exit 2; }
for test in "${tests[@]}"; do
    ! test_fails "$test" || { tail -n 20 "$TMP/log" && echo "error: $test fails without a fault" && exit 2; }
done

missed=0
for e in "${chosen[@]}"; do
    read -r name file test <<<"$e"
    plant "$name" "$ROOT/$file" >"$TMP/tree/$file"
    if ! build "$BUILD/cuemu/tests/$test"; then
        verdict="DOES NOT COMPILE: $(grep -m 1 error "$TMP/make.log")" missed=$((missed + 1))
    elif test_fails "$test"; then
        verdict="$(said)"
    else
        verdict="NOT CAUGHT" missed=$((missed + 1))
    fi
    printf '%-22s %-28s %-22s %s\n' "$name" "$file" "$test" "${verdict:0:110}"
    cp "$ROOT/$file" "$TMP/tree/$file" # with the time of now
done
echo "$((${#chosen[@]} - missed)) of ${#chosen[@]} faults caught"
[ "$missed" -eq 0 ]
