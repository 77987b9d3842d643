#!/usr/bin/env bash
# run-model on tiny models of every family: logits of prompt and output within 2e-4 of the reference, greedy ids equal, and
# the same bits for any --tp at conversion, --store, number of ranks, threads, page size and prompt chunk. Families beyond
# llama, mistral and qwen2 are tried with fewer files. Without the shared data one model of tests/data is tried.
. "$(dirname "$0")/lib.sh"
if [ ! -x "$BIN/run-model" ] || [ ! -x "$BIN/convert-hf" ]; then
    fail "run-model and convert-hf are not built"
    finish
fi
compare=$BUILD/tests/npy_compare
if [ -n "$SHARED" ]; then
    models=$(for m in llama-gqa llama-3of9heads llama-bias-f16 llama-yarn llama3-rope mistral-window qwen2; do echo "$SHARED/models/$m"; done)
    more=$(for m in olmo2 qwen3 phi3 gemma2 gemma3 starcoder2 gpt2 gptneox falcon-mqa; do echo "$SHARED/models/$m"; done)
else
    more=
    models=$ROOT/tests/data/llama-gqa
    skip "no shared models: only $(basename "$models") is tried"
fi

run() { # OUT.npy FILE ARGS...: prints the ids
    local out=$1 file=$2
    shift 2
    "$BIN/run-model" -m "$file" --prompt-ids "$prompt" -n 24 --temp 0 --ignore-eos --print-ids --logits "$out" "$@" 2>>"$TMP/stderr"
}

# Runs with the arguments and compares with $TMP/first.npy by bits; counts in $runs, complaints in $TMP/differ.
same() { # FILE ARGS...
    local ids
    ids=$(run "$TMP/next.npy" "$@")
    runs=$((runs + 1))
    [ "$ids" = "$want" ] && cmp -s "$TMP/first.npy" "$TMP/next.npy" || echo "differs: $*" >>"$TMP/differ"
    rm -f "$TMP/next.npy"
}

bits_equal() { # NAME KV
    local kv=$2 f r t n=0 pages=(16 32 64) chunks=(1 7 32 512)
    runs=0
    : >"$TMP/differ"
    for f in "$TMP"/m.*.tess; do # every file with every number of ranks; the rest in turn
        for r in 1 2 3 4; do
            for t in 1 2; do
                same "$f" --compute f32 --kv "$kv" --tp $r -t $t --page ${pages[n % 3]} -ub ${chunks[n % 4]}
                n=$((n + 1))
            done
        done
    done
    f=$TMP/m.3.raw.tess
    for page in "${pages[@]}"; do # every page size with every chunk, on one and on three ranks
        for chunk in "${chunks[@]}"; do
            same "$f" --compute f32 --kv "$kv" --tp 1 -t 2 --page $page -ub $chunk
            same "$f" --compute f32 --kv "$kv" --tp 3 -t 1 --page $page -ub $chunk
        done
    done
    equal "$1: equal bits in $runs runs, kv $kv" "" "$(head -n 5 "$TMP/differ")"
}

for dir in $models $more; do
    name=$(basename "$dir")
    case " $(echo $more) " in *" $dir "*) tps="1 3" ;; *) tps="1 2 3 4 8" ;; esac
    rm -f "$TMP"/m.*
    prompt=$("$compare" ids "$dir/golden.json" prompt_ids)
    want=$("$compare" ids "$dir/golden.json" greedy_ids)
    for store in raw zstd; do
        for tp in $tps; do
            "$BIN/convert-hf" "$dir" -o "$TMP/m.$tp.$store.tess" --tp $tp --store $store >"$TMP/convert.log" 2>&1 || { fail "$name: conversion with --tp $tp --store $store"; cat "$TMP/convert.log"; continue 3; }
        done
    done
    equal "$name: greedy ids" "$want" "$(run "$TMP/first.npy" "$TMP/m.1.raw.tess" --compute f32 --kv f32)"
    check "$name: logits" "$compare" logits "$dir/golden.safetensors" "$TMP/first.npy" 2e-4
    bits_equal "$name" f32
    cp "$TMP/first.npy" "$TMP/f32.npy"
    ids=$(run "$TMP/first.npy" "$TMP/m.1.raw.tess" --compute exact --kv f16)
    check "$name: kv f16 stays near" "$compare" near "$TMP/f32.npy" "$TMP/first.npy" 0.05
    want=$ids runs=0
    : >"$TMP/differ"
    for r in 1 2 3 4; do
        same "$TMP/m.1.zstd.tess" --compute exact --kv f16 --tp $r -t 2 --page 16 -ub 7
        same "$TMP/m.3.raw.tess" --kv f16 --tp $r -t 1 --page 64 -ub 33
        same "$TMP/m.1.raw.tess" --tp $r
    done
    equal "$name: equal bits in $runs runs, kv f16" "" "$(cat "$TMP/differ")"
done
[ -s "$TMP/stderr" ] && { fail "stderr stays empty"; head -n 5 "$TMP/stderr"; }
finish
