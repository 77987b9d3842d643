#!/usr/bin/env bash
# gpu_check.sh - the run on a machine with a CUDA device: what tests/cuemu can not show. Under eight minutes with a built tree.
#
#   tests/gpu_check.sh [--no-build] [--dry] [--limit SECONDS] [--out FILE.json]
#
# Builds for the devices that are there, then
#   right:  every operation against ref.c on the device; goldens on one device, on two and three ranks of one device, on two devices
#           when there are two; the bits of all of these and of the CPU; SmolLM2 where it is
#   speed:  tests/gpu: memory, tensor cores, a synthetic model of the shape of an 8B one, attention and linear operations alone, the
#           all-reduce, each beside its bound; PyTorch in the same shapes where it is installed; start-up
#   and a small run under compute-sanitizer, with the time that is left.
# Prints a table and writes one JSON object: {"device", "checks": [{"name", "result", "seconds", "note"}], "speeds": [lines of
# gpu_bench, see tests/gpu/gpu_bench.h], "seconds", "failed"}. Exit status 0: nothing failed, 1: something did, or usage. What can not
# be done here, or not in the time (480 s), is "skip" with the reason.
#
# --dry runs all of it over tests/cuemu in tiny shapes, where `make cuemu` was run: speeds mean nothing then.
# BUILD names the build folder (build); RUN and BENCH the run-model and gpu_bench to try; PYTHON the one with PyTorch (python3);
# GPU_CHECK_MODELS the goldens; SMOLLM2 a .tess of SmolLM2, any part of it, or what convert-hf makes one of. To carry it:
# convert-hf CHECKPOINT -o smollm2.tess --type q4 --split-max-size 30M
. "$(dirname "$0")/lib.sh"
out=$BUILD/gpu_check.json build=1 dry= limit=480 patience=60
usage() { echo "usage: tests/gpu_check.sh [--no-build] [--dry] [--limit SECONDS] [--out FILE.json]" >&2 && exit 1; }
while [ $# -gt 0 ]; do
    case $1 in
    --no-build) build= ;;
    --dry) dry=1 build= patience=600 ;;
    --limit) [[ ${2-} =~ ^[0-9]{1,6}$ ]] || usage; limit=$2 && shift ;;
    --out) [ -n "${2-}" ] || usage; out=$2 && shift ;;
    *) usage ;;
    esac
    shift
done
[[ $out = /* ]] || out=$PWD/$out
cd "$ROOT" || exit 1
if [ -n "$dry" ]; then
    RUN=${RUN:-$BUILD/cuemu/bin/run-model} BENCH=${BENCH:-$BUILD/cuemu/tests/gpu_bench} GPU_CHECK_MODELS=${GPU_CHECK_MODELS-llama-gqa}
    export CUEMU_DEVICES=${CUEMU_DEVICES:-2}
fi
RUN=${RUN:-$BIN/run-model} BENCH=${BENCH:-$BUILD/tests/gpu_bench} COMPARE=$BUILD/tests/npy_compare
checks=() speeds=() failed=0 device=none

quote() { tr -d '\000-\037' | tr '"\\' "''" | cut -c1-300; }
record() { # NAME RESULT SECONDS NOTE
    printf '%-44s %-5s %8s  %s\n' "$1" "$2" "$3" "$(head -n 1 <<<"$4" | cut -c1-100)"
    checks+=("{\"name\": \"$1\", \"result\": \"$2\", \"seconds\": $3, \"note\": \"$(head -n 1 <<<"$4" | quote)\"}")
    [ "$2" != fail ] || failed=$((failed + 1))
}
skip_step() { record "$1" skip 0 "$2"; }
left() { echo $((limit - SECONDS)); }
since() { awk "BEGIN {printf \"%.3f\", $(date +%s.%N) - $1}"; }
# step NEED NAME COMMAND...: ok when the command succeeds; the last line of what it printed is the note. Skipped when less than NEED
# seconds are left.
step() {
    local need=$1 name=$2 start rc=0 result=ok
    shift 2
    [ "$(left)" -ge "$need" ] || { skip_step "$name" "no time left" && return 1; }
    start=$(date +%s.%N)
    "$@" >"$TMP/step.out" 2>&1 || rc=$?
    [ $rc -eq 0 ] || result=fail
    record "$name" $result "$(since "$start")" "$(tail -n 1 "$TMP/step.out")"
    [ $rc -eq 0 ]
}
finish_check() {
    local IFS=,
    printf '{"device": "%s", "checks": [%s], "speeds": [%s], "seconds": %d, "failed": %d}\n' \
        "$(quote <<<"$device")" "${checks[*]-}" "${speeds[*]-}" "$SECONDS" "$failed" >"$out" || failed=$((failed + 1))
    echo "$out: $failed failed"
    exit $((failed > 0))
}

# ---- build ----
if [ -n "$build" ]; then
    archs=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -u | tr '\n' ' ')
    step 0 "build" make -j"$(nproc)" BUILD="$BUILD" ${archs:+CUDA_ARCHS="$archs"} all test-programs || finish_check
    limit=$((limit + SECONDS)) # the time is for what follows
fi
devices=$("$RUN" --list-devices | grep -c '^cuda:[0-9]* .*compute')
device=$("$RUN" --list-devices | grep '^cuda' | head -n 1)
echo "$device"
if [ "$devices" -eq 0 ]; then
    record "device" fail 0 "${device:-no device}"
    finish_check
fi

# ---- operations ----
for t in ops gemm attn moe best; do
    if [ -n "$dry" ]; then skip_step "t_cuda_$t" "make test-cuemu runs it"
    elif [ -x "$BUILD/tests/t_cuda_$t" ]; then step 240 "t_cuda_$t" timeout "$patience" "$BUILD/tests/t_cuda_$t"
    else skip_step "t_cuda_$t" "$BUILD/tests/t_cuda_$t is not built"; fi
done

# ---- models ----
# One golden on a list of devices: logits near the golden, and the bits of the CPU.
golden() { # DIR MODEL DEVICES
    rm -f "$TMP/d.npy"
    timeout "$patience" "$RUN" -m "$2" --devices "$3" --prompt-ids "$prompt" -n 24 --temp 0 --ignore-eos --print-ids --compute f32 --kv f32 --logits "$TMP/d.npy" >"$TMP/ids" &&
        "$COMPARE" logits "$1/golden.safetensors" "$TMP/d.npy" 2e-4 &&
        { [ "$(cat "$TMP/ids")" = "$greedy" ] || { echo "other greedy ids" && false; }; } &&
        { cmp -s "$TMP/c.npy" "$TMP/d.npy" && echo "bits of the CPU" || echo "near the golden, not the bits of the CPU"; }
}
lists="cuda:0 cuda:0,0 cuda:0,0,0"
[ "$devices" -lt 2 ] || lists="$lists cuda:0,1 cuda:0,0,1"
for name in ${GPU_CHECK_MODELS-llama-gqa gemma3 mixtral-moe olmo2 gpt2 phi3 deepseek-v3 gpt-oss}; do
    dir=
    for d in "${SHARED:-/nonexistent}/models/$name" "tests/models/$name" "tests/data/$name"; do
        [ -f "$d/golden.safetensors" ] && dir=$d && break
    done
    [ -n "$dir" ] || { skip_step "$name" "no golden" && continue; }
    prompt=$("$COMPARE" ids "$dir/golden.json" prompt_ids) greedy=$("$COMPARE" ids "$dir/golden.json" greedy_ids)
    "$BIN/convert-hf" "$dir" -o "$TMP/$name.tess" --tp 2 >"$TMP/convert.log" 2>&1 || { record "$name" fail 0 "$(tail -n 1 "$TMP/convert.log")" && continue; }
    "$BIN/run-model" -m "$TMP/$name.tess" --prompt-ids "$prompt" -n 24 --temp 0 --ignore-eos --print-ids --compute f32 --kv f32 --logits "$TMP/c.npy" >/dev/null 2>&1
    for list in $lists; do step 240 "$name on $list" golden "$dir" "$TMP/$name.tess" "$list"; done
done

# q8 with int8 pages: the bits at one, two and three ranks of one device, and in other chunks.
quantized() {
    local n=0
    for how in "cuda:0 32 512" "cuda:0,0 16 7" "cuda:0,0,0 64 33"; do
        read -r list page chunk <<<"$how"
        timeout "$patience" "$RUN" -m "$TMP/q8.tess" --devices "$list" --prompt-ids "$prompt" -n 24 --temp 0 --ignore-eos --print-ids --kv int8 --compute exact --page "$page" -ub "$chunk" \
            --logits "$TMP/q.$n.npy" >/dev/null || return 1
        cmp "$TMP/q.0.npy" "$TMP/q.$n.npy" || return 1
        n=$((n + 1))
    done
    echo "equal bits in $n runs"
}
base=${SHARED:-/nonexistent}/models/llama-gqa
[ -d "$base" ] || base=tests/data/llama-gqa
prompt=$("$COMPARE" ids "$base/golden.json" prompt_ids 2>/dev/null || echo 1,2,3,4,5,6,7,8,9)
have_q8=
if "$BIN/convert-hf" "$base" -o "$TMP/q8.tess" --type q8 >"$TMP/convert.log" 2>&1; then
    have_q8=1
    step 240 "q8, int8 pages, 1 to 3 ranks" quantized
else skip_step "q8, int8 pages, 1 to 3 ranks" "$(tail -n 1 "$TMP/convert.log")"; fi

# ---- speeds ----
field() { sed -nE "s/.*\"$2\": (\"([^\"]*)\"|[-+0-9.e]+).*/\1/p" <<<"$1" | tr -d '"'; }
declare -A value_of
# A line of gpu_bench or torch_peer.py: into the table and the list.
speed() {
    local name value
    name=$(field "$1" name) value=$(field "$1" value)
    [[ $1 = \{*\} && -n $name ]] || { record "speeds" fail 0 "not a line of results: $1" && return; }
    case $1 in
    *'"skip": '*) skip_step "$name" "$(field "$1" skip)" && return ;;
    *'"error": '*) record "$name" fail 0 "$(field "$1" error)" && return ;;
    esac
    speeds+=("$1")
    value_of[$name]=$value
    printf '%-52s %11s %-9s' "$name" "$(awk "BEGIN {printf \"%.6g\", $value}")" "$(field "$1" unit)"
    [ -z "$(field "$1" fraction)" ] || printf ' %6.1f %% of %s (%s)' "$(awk "BEGIN {print 100 * $(field "$1" fraction)}")" "$(field "$1" bound)" "$(field "$1" bound_is)"
    echo
    # What PyTorch measured in the same shape has the same name behind "torch: ".
    local ours=${value_of[${name#torch: }]-}
    [[ $name != torch:* || -z $ours ]] || speed "{\"name\": \"${name#torch: }, over torch\", \"value\": $(awk "BEGIN {printf \"%.3f\", $ours / $value}"), \"unit\": \"times\"}"
}
# speeds_of NAME COMMAND...: what it prints, line by line; fails with the last line of its stderr.
speeds_of() {
    local name=$1 start rc=0 line
    shift
    start=$(date +%s.%N)
    "$@" >"$TMP/speeds.out" 2>"$TMP/speeds.err" || rc=$?
    while read -r line; do speed "$line"; done <"$TMP/speeds.out"
    if [ $rc -eq 0 ]; then record "$name" ok "$(since "$start")" "$(wc -l <"$TMP/speeds.out") lines"
    else record "$name" fail "$(since "$start")" "status $rc: $(tail -n 1 "$TMP/speeds.err")"; fi
}
# The whole command with a tiny model: the driver, the kernels, the model, one token. The second of two runs.
start_up() {
    local start
    for _ in 1 2; do
        start=$(date +%s.%N)
        timeout "$patience" "$RUN" -m "$TMP/q8.tess" --devices cuda:0 --prompt-ids 1,2,3 -n 1 --temp 0 --ignore-eos --print-ids >/dev/null 2>"$TMP/start.err" || return
    done
    since "$start"
}
if [ -z "$have_q8" ]; then skip_step "start-up, tiny model, one token" "no model"
elif t=$(start_up); then speed "{\"name\": \"start-up, tiny model, one token\", \"value\": $t, \"unit\": \"s\"}"
else record "start-up, tiny model, one token" fail 0 "$(tail -n 1 "$TMP/start.err")"; fi

bench_time=$(($(left) - 90))
if [ ! -x "$BENCH" ]; then skip_step "gpu_bench" "$BENCH is not built"
elif [ "$bench_time" -lt 20 ]; then skip_step "gpu_bench" "no time left"
else speeds_of "gpu_bench" timeout $((bench_time + 30)) "$BENCH" ${dry:+--dry} --dir "$TMP" --seconds "$bench_time"; fi

python=$(command -v "${PYTHON:-python3}")
if [ -z "$python" ]; then skip_step "torch" "there is no python3"
elif [ "$(left)" -lt 60 ]; then skip_step "torch" "no time left"
else speeds_of "torch" timeout "$patience" "$python" tests/gpu/torch_peer.py ${dry:+--dry}; fi

# ---- SmolLM2 ----
# The greedy text of the CPU, or one that parts from it late: f32 on both sides.
same_text() {
    local how=(-m "$smol" --prompt-ids 1,504,3575,282,4649,314 -n 32 --temp 0 --ignore-eos --print-ids --compute f32 --kv f32)
    timeout "$patience" "$BIN/run-model" "${how[@]}" >"$TMP/smol.cpu" && timeout "$patience" "$RUN" "${how[@]}" --devices cuda:0 >"$TMP/smol.gpu" && cmp "$TMP/smol.cpu" "$TMP/smol.gpu" &&
        echo "32 equal ids"
}
smol_speeds() {
    timeout "$patience" "$BIN/bench-model" -m "$smol" --devices cuda:0 -p 512 -n 128 -r 3 --kv int8 --csv >"$TMP/smol.csv" || return
    awk -F, 'NR == 1 {for (i = 1; i <= NF; i++) at[$i] = i}
        NR > 1 {printf "{\"name\": \"SmolLM2 %s, %s of %s\", \"value\": %s, \"unit\": \"tokens/s\"}\n", $at["type"], $at["test"], $at["tokens"], $at["tokens_per_s"]}' "$TMP/smol.csv"
}
smol=${SMOLLM2:-}
for f in "$BUILD/smollm2/smollm2.tess" "$BUILD"/smollm2/*.gguf; do [ -n "$smol" ] || [ ! -f "$f" ] || smol=$f; done
if [ -n "$dry" ]; then skip_step "SmolLM2" "too large for the emulator"
elif [ -z "$smol" ]; then skip_step "SmolLM2" "SMOLLM2 names no model"
elif [ "$(left)" -lt 60 ]; then skip_step "SmolLM2" "no time left"
elif [[ $smol != *.tess ]] && ! "$BIN/convert-hf" "$smol" -o "$TMP/smol.tess" --type q4 >"$TMP/convert.log" 2>&1; then record "SmolLM2" fail 0 "$(tail -n 1 "$TMP/convert.log")"
else
    [[ $smol = *.tess ]] || smol=$TMP/smol.tess
    step 40 "SmolLM2, ids of the CPU" same_text
    speeds_of "SmolLM2" smol_speeds
fi

# ---- compute-sanitizer ----
small() { "$@" "$RUN" -m "$TMP/q8.tess" --devices cuda:0,0 --prompt-ids 1,2,3,4,5 -n 2 --temp 0 --ignore-eos --print-ids --kv int8; }
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
for tool in memcheck racecheck synccheck initcheck; do
    if [ -n "$dry" ]; then skip_step "compute-sanitizer $tool" "the emulator has its own checks"
    elif [ -z "$sanitizer" ]; then skip_step "compute-sanitizer $tool" "there is none"
    elif [ -z "$have_q8" ]; then skip_step "compute-sanitizer $tool" "no model"
    else step 20 "compute-sanitizer $tool" small timeout "$(($(left) < 100 ? $(left) : 100))" "$sanitizer" --tool "$tool" --error-exitcode 9; fi
done
finish_check
