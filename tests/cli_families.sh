#!/usr/bin/env bash
# Every family: the tiny checkpoints of tests/models and of the shared data are converted with --tp 1 and 4 and run on 1 to 4
# ranks; logits of prompt and output within 2e-4 of transformers in float32, greedy ids equal, the same bits in every run.
# tests/tools/make-family.py made the checkpoints.
. "$(dirname "$0")/lib.sh"
if [ ! -x "$BIN/run-model" ] || [ ! -x "$BIN/convert-hf" ]; then
    fail "run-model and convert-hf are not built"
    finish
fi
compare=$BUILD/tests/npy_compare
[ -x "$compare" ] || { fail "npy_compare is not built"; finish; }
[ -n "$SHARED" ] || skip "no shared models: only those of tests/models are tried"

run() { # OUT.npy FILE ARGS...: prints the ids
    local out=$1 file=$2
    shift 2
    "$BIN/run-model" -m "$file" --prompt-ids "$prompt" -n 24 --temp 0 --ignore-eos --print-ids --logits "$out" --compute f32 --kv f32 "$@" 2>>"$TMP/stderr"
}

for dir in "$ROOT"/tests/models/*/ ${SHARED:+"$SHARED"/models/*/}; do
    name=$(basename "$dir") differ=
    [ -f "$dir/golden.safetensors" ] && [ -f "$dir/model.safetensors" ] || continue
    prompt=$("$compare" ids "$dir/golden.json" prompt_ids)
    want=$("$compare" ids "$dir/golden.json" greedy_ids)
    for tp in 1 4; do
        "$BIN/convert-hf" "$dir" -o "$TMP/m.$tp.tess" --tp $tp --force >"$TMP/convert.log" 2>&1 && continue
        fail "$name: conversion with --tp $tp"
        cat "$TMP/convert.log"
        continue 2
    done
    equal "$name: greedy ids" "$want" "$(run "$TMP/first.npy" "$TMP/m.1.tess" -t 1)"
    check "$name: logits" "$compare" logits "$dir/golden.safetensors" "$TMP/first.npy" 2e-4
    for args in "1 --tp 2 -t 2" "1 --tp 3 -ub 7 -t 4" "1 --tp 4 --page 16" "4 --tp 1 -ub 33 -t 2" "4 --tp 2 -ub 1" "4 --tp 3 --page 64" "4 --tp 4 -t 4"; do
        rm -f "$TMP/next.npy"
        # shellcheck disable=SC2086
        run "$TMP/next.npy" "$TMP/m.${args%% *}.tess" ${args#* } >/dev/null
        cmp -s "$TMP/first.npy" "$TMP/next.npy" || differ="$differ [$args]"
    done
    equal "$name: equal bits" "" "$differ"
done
[ -s "$TMP/stderr" ] && { fail "stderr stays empty"; head -n 5 "$TMP/stderr"; }
finish
