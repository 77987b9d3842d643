#!/usr/bin/env bash
# gpu_check.sh - the short run on a machine with a CUDA device: what tests/cuemu can not show. Under four minutes.
#
#   tests/gpu_check.sh [--no-build] [--out FILE.json]
#
# Builds for the devices that are there, then: every operation against ref.c on the device; goldens on one device, on two and three
# ranks of one device, on two devices when there are two; the bits of all of these and of the CPU; a small run under
# compute-sanitizer. Prints a table and writes one JSON object: {"device", "checks": [{"name", "result", "seconds", "note"}], "failed"}.
# Exit status 0: nothing failed. What can not be done here is "skip" with the reason.
# BUILD names the build folder (build); RUN the run-model to try, for a dry run over tests/cuemu.
. "$(dirname "$0")/lib.sh"
out=$BUILD/gpu_check.json build=1
while [ $# -gt 0 ]; do
    case $1 in
    --no-build) build= ;;
    --out) out=$2 && shift ;;
    *) echo "usage: tests/gpu_check.sh [--no-build] [--out FILE.json]" >&2 && exit 1 ;;
    esac
    shift
done
cd "$ROOT" || exit 1
RUN=${RUN:-$BIN/run-model} COMPARE=$BUILD/tests/npy_compare
checks=() failed=0

quote() { tr -d '\000-\037' | tr '"\\' "''" | cut -c1-300; }
record() { # NAME RESULT SECONDS NOTE
    printf '%-44s %-5s %7s  %s\n' "$1" "$2" "$3" "$(head -n 1 <<<"$4" | cut -c1-100)"
    checks+=("{\"name\": \"$1\", \"result\": \"$2\", \"seconds\": $3, \"note\": \"$(head -n 1 <<<"$4" | quote)\"}")
    [ "$2" != fail ] || failed=$((failed + 1))
}
# step NAME COMMAND...: ok when the command succeeds; the last line of what it printed is the note.
step() {
    local name=$1 start end rc=0
    shift
    start=$(date +%s.%N)
    "$@" >"$TMP/step.out" 2>&1 || rc=$?
    end=$(date +%s.%N)
    local result=ok
    [ $rc -eq 0 ] || result=fail
    record "$name" $result "$(awk "BEGIN {printf \"%.1f\", $end - $start}")" "$(tail -n 1 "$TMP/step.out")"
    [ $rc -eq 0 ]
}
skip_step() { record "$1" skip 0 "$2"; }
finish_check() {
    local IFS=,
    printf '{"device": "%s", "checks": [%s], "failed": %d}\n' "$(quote <<<"$device")" "${checks[*]}" "$failed" >"$out"
    echo "$out: $failed failed"
    exit $((failed > 0))
}

# ---- build ----
if [ -n "$build" ]; then
    archs=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -u | tr '\n' ' ')
    step "build" make -j"$(nproc)" BUILD="$BUILD" ${archs:+CUDA_ARCHS="$archs"} all test-programs || { device=none && finish_check; }
fi
devices=$("$RUN" --list-devices | grep -c '^cuda:[0-9]* .*compute')
device=$("$RUN" --list-devices | grep '^cuda' | head -n 1)
echo "$device"
if [ "$devices" -eq 0 ]; then
    record "device" fail 0 "$device"
    finish_check
fi

# ---- operations ----
if [ -x "$BUILD/tests/t_cuda_ops" ]; then step "operations against ref" "$BUILD/tests/t_cuda_ops"
else skip_step "operations against ref" "$BUILD/tests/t_cuda_ops is not built"; fi

# ---- models ----
# One golden on a list of devices: logits near the golden, and the bits of the CPU.
golden() { # DIR MODEL DEVICES
    rm -f "$TMP/d.npy"
    timeout 60 "$RUN" -m "$2" --devices "$3" --prompt-ids "$prompt" -n 24 --temp 0 --ignore-eos --print-ids --compute f32 --kv f32 --logits "$TMP/d.npy" >"$TMP/ids" &&
        "$COMPARE" logits "$1/golden.safetensors" "$TMP/d.npy" 2e-4 &&
        { [ "$(cat "$TMP/ids")" = "$greedy" ] || { echo "other greedy ids" && false; }; } &&
        { cmp -s "$TMP/c.npy" "$TMP/d.npy" && echo "bits of the CPU" || echo "near the golden, not the bits of the CPU"; }
}
lists="cuda:0 cuda:0,0 cuda:0,0,0"
[ "$devices" -lt 2 ] || lists="$lists cuda:0,1 cuda:0,0,1"
for name in ${GPU_CHECK_MODELS:-llama-gqa gemma3 mixtral-moe olmo2 gpt2 phi3 deepseek-v3 gpt-oss}; do
    dir=
    for d in "${SHARED:-/nonexistent}/models/$name" "tests/models/$name" "tests/data/$name"; do
        [ -f "$d/golden.safetensors" ] && dir=$d && break
    done
    [ -n "$dir" ] || { skip_step "$name" "no golden" && continue; }
    prompt=$("$COMPARE" ids "$dir/golden.json" prompt_ids) greedy=$("$COMPARE" ids "$dir/golden.json" greedy_ids)
    "$BIN/convert-hf" "$dir" -o "$TMP/$name.tess" --tp 2 >"$TMP/convert.log" 2>&1 || { record "$name" fail 0 "$(tail -n 1 "$TMP/convert.log")" && continue; }
    "$BIN/run-model" -m "$TMP/$name.tess" --prompt-ids "$prompt" -n 24 --temp 0 --ignore-eos --print-ids --compute f32 --kv f32 --logits "$TMP/c.npy" >/dev/null 2>&1
    for list in $lists; do step "$name on $list" golden "$dir" "$TMP/$name.tess" "$list"; done
done

# q8 with int8 pages: the bits at one, two and three ranks of one device, and in other chunks.
quantized() {
    local n=0
    for how in "cuda:0 32 512" "cuda:0,0 16 7" "cuda:0,0,0 64 33"; do
        read -r list page chunk <<<"$how"
        timeout 60 "$RUN" -m "$TMP/q8.tess" --devices "$list" --prompt-ids "$prompt" -n 24 --temp 0 --ignore-eos --print-ids --kv int8 --page "$page" -ub "$chunk" \
            --logits "$TMP/q.$n.npy" >/dev/null || return 1
        cmp "$TMP/q.0.npy" "$TMP/q.$n.npy" || return 1
        n=$((n + 1))
    done
    echo "equal bits in $n runs"
}
base=${SHARED:-/nonexistent}/models/llama-gqa
[ -d "$base" ] || base=tests/data/llama-gqa
prompt=$("$COMPARE" ids "$base/golden.json" prompt_ids 2>/dev/null || echo 1,2,3,4,5,6,7,8,9)
if "$BIN/convert-hf" "$base" -o "$TMP/q8.tess" --type q8 >"$TMP/convert.log" 2>&1; then step "q8, int8 pages, 1 to 3 ranks" quantized
else skip_step "q8, int8 pages, 1 to 3 ranks" "$(tail -n 1 "$TMP/convert.log")"; fi

# ---- compute-sanitizer ----
small() { "$@" "$RUN" -m "$TMP/q8.tess" --devices cuda:0,0 --prompt-ids 1,2,3,4,5 -n 2 --temp 0 --ignore-eos --print-ids --kv int8; }
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
for tool in memcheck racecheck synccheck initcheck; do
    if [ -z "$sanitizer" ]; then skip_step "compute-sanitizer $tool" "there is none"
    else step "compute-sanitizer $tool" small timeout 100 "$sanitizer" --tool "$tool" --error-exitcode 9; fi
done
finish_check
