#!/usr/bin/env bash
# The run for a real GPU (gpu_check.sh), dry: all its steps over the emulator, so that a lent GPU's minutes are not spent on its faults.
. "$(dirname "$0")/lib.sh"
cd "$ROOT" || exit 1
bench=$BUILD/cuemu/tests/gpu_bench
if [ ! -x "$bench" ] || [ ! -x "$BUILD/cuemu/bin/run-model" ]; then
    skip "gpu_check.sh --dry: the emulated commands are not built"
    finish
fi
dry() { BUILD=$BUILD PYTHON=/nonexistent bash tests/gpu_check.sh --dry --limit 9999 "$@"; }

# ---- the whole ----
check "dry run" dry --out "$TMP/all.json"
has() { grep -qF -- "$1" "$TMP/all.json" && pass "it has $1" || fail "it has $1"; }
for name in "llama-gqa on cuda:0,0,1" "q8, int8 pages, 1 to 3 ranks" "start-up, tiny model, one token" "memory, read" "tensor cores, bf16 mma.sync" \
    "opening the model" "decode, batch 3" "prompt of 40" "attention, decode 1 x 300, int8 over f16" "attention, prompt 24, int8" "linear q4 64 x 128, 20 tokens" "gemm bf16 64 x 128, 20 tokens" \
    "all-reduce, 8 ranks on one device, 3 x 128" "all-reduce, 2 ranks on as many devices, 1 x 128" '"failed": 0'; do
    has "$name"
done
equal "every check is ok or skipped" "" "$(grep -oE '"name": "[^"]*", "result": "fail"' "$TMP/all.json")"
equal "no file is left" "" "$(ls "$TMP" | grep gpu_bench)"
if command -v python3 >/dev/null; then
    check "it is JSON" python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); assert all(s["value"] >= 0 for s in d["speeds"]) and len(d["speeds"]) > 40' "$TMP/all.json"
    check "the peer in its dry form" python3 tests/gpu/torch_peer.py --dry
else skip "JSON and the peer: there is no python3"; fi

# ---- failures show ----
expect "gpu_bench: no device" 4 "there is no device cuda:0" env CUEMU_DEVICES=0 "$bench" --dry
expect "gpu_bench: an unknown part" 1 "usage" "$bench" --dry nothing
expect "gpu_bench: a number that is none" 1 "usage" "$bench" --dry --seconds x
fails() { # NAME, pattern of a line, settings
    local rc=0
    env CUEMU_QUIET=1 "${@:3}" "$bench" --dry machine linear >"$TMP/lines" 2>/dev/null || rc=$?
    equal "$1: status" 5 "$rc"
    grep -qE "$2" "$TMP/lines" && pass "$1: says so" || { fail "$1: says so" && cat "$TMP/lines"; }
}
fails "a launch that fails" '^\{"name": "machine", "error": "' CUEMU_FAIL_LAUNCH=3
grep -q '"linear q4 64 x 128, 20 tokens"' "$TMP/lines" && pass "the other parts run" || fail "the other parts run"
fails "memory that runs out" '^\{"name": "machine", "error": "no .* MB of device memory' CUEMU_FAIL_ALLOC=2
"$bench" --dry --dir /nonexistent model >"$TMP/lines" 2>/dev/null
equal "a folder that is not there" 5 $?
grep -q '"name": "model", "error": ".*/nonexistent' "$TMP/lines" && pass "it is named" || fail "it is named"
equal "no time" '{"name": "linear", "skip": "no time left"}' "$("$bench" --seconds 0 linear 2>/dev/null)"
export GPU_CHECK_MODELS=
CUEMU_FAIL_LAUNCH=9999999 CUEMU_QUIET=1 BENCH=/bin/false dry --out "$TMP/bad.json" >/dev/null 2>&1
equal "a bench that fails: status" 1 $?
grep -q '"name": "gpu_bench", "result": "fail".*"failed": 1}' "$TMP/bad.json" && pass "a bench that fails: said" || fail "a bench that fails: said"
dry --limit 0 --out "$TMP/late.json" >/dev/null 2>&1
equal "no time at all: status" 0 $?
grep -q '"name": "gpu_bench", "result": "skip", "seconds": 0, "note": "no time left"' "$TMP/late.json" && pass "no time at all: said" || fail "no time at all: said"
CUEMU_DEVICES=0 dry --out "$TMP/none.json" >/dev/null 2>&1
equal "no device: status" 1 $?
expect "gpu_check.sh: usage" 1 "" bash -c 'bash tests/gpu_check.sh --what 2>&1 | sed "s/^usage/error: usage/" >&2; exit "${PIPESTATUS[0]}"'
finish
