#!/usr/bin/env bash
# GGUF files of every family: files that llama.cpp's converter made of tiny checkpoints give the logits that transformers gives
# for those (2e-4, greedy ids equal), laid out for 1 and 4 ranks. tests/gguf holds them as differences from the checkpoints in
# tests/models and in the shared data; tests/tools/make-gguf.py made them. A golden beside a difference replaces that of the checkpoint.
. "$(dirname "$0")/lib.sh"
if [ ! -x "$BIN/run-model" ] || [ ! -x "$BIN/convert-hf" ]; then
    fail "run-model and convert-hf are not built"
    finish
fi
compare=$BUILD/tests/npy_compare
[ -n "$SHARED" ] || skip "no shared models: only GGUF files of tests/models are tried"

for dir in "$ROOT"/tests/gguf/*/; do
    name=$(basename "$dir") from=$ROOT/tests/models/$(basename "$dir")
    [ -d "$from" ] || from=$SHARED/models/$name
    [ -n "$SHARED" ] || [ -d "$ROOT/tests/models/$name" ] || continue
    if ! "$BUILD/tests/gguf_delta" apply "$dir/gguf.delta" "$TMP/model.gguf" "$from"/model*.safetensors; then
        fail "$name: the difference does not fit the checkpoint"
        continue
    fi
    golden=$from
    [ -f "$dir/golden.json" ] && golden=$dir
    prompt=$("$compare" ids "$golden/golden.json" prompt_ids)
    want=$("$compare" ids "$golden/golden.json" greedy_ids)
    for tp in 1 4; do
        if ! "$BIN/convert-hf" "$TMP/model.gguf" -o "$TMP/m.tess" --tp $tp --force >"$TMP/log" 2>&1; then
            fail "$name: conversion with --tp $tp"
            cat "$TMP/log"
            continue 2
        fi
        ids=$("$BIN/run-model" -m "$TMP/m.tess" --tp $tp --prompt-ids "$prompt" -n 24 --temp 0 --ignore-eos --print-ids \
            --logits "$TMP/o.$tp.npy" --compute f32 --kv f32 2>>"$TMP/stderr")
        equal "$name: greedy ids (--tp $tp)" "$want" "$ids"
    done
    check "$name: logits" "$compare" logits "$golden/golden.safetensors" "$TMP/o.1.npy" 2e-4
    check "$name: equal bits" cmp -s "$TMP/o.1.npy" "$TMP/o.4.npy"
done
[ -s "$TMP/stderr" ] && { fail "stderr stays empty"; head -n 5 "$TMP/stderr"; }

# Block types: a small model whose matrices have eight of them. As f32 it gives the logits that transformers gives for its
# dequantized weights; as auto each type becomes what it should, and what that loses is printed. tests/tools/make-gguf-blocks.py
# made it.
mixed=$ROOT/tests/data/gguf/mixed
prompt=$("$compare" ids "$mixed/golden.json" prompt_ids)
want=$("$compare" ids "$mixed/golden.json" greedy_ids)
logits() { "$BIN/run-model" -m "$TMP/m.tess" --prompt-ids "$prompt" -n 8 --temp 0 --ignore-eos --print-ids --logits "$1" "${@:2}" 2>&1; }
check "blocks to f32" "$BIN/convert-hf" "$mixed/model.gguf" -o "$TMP/m.tess" --type f32 --force
equal "blocks as f32: greedy ids" "$want" "$(logits "$TMP/f32.npy" --compute f32 --kv f32)"
check "blocks as f32: logits" "$compare" logits "$mixed/golden.safetensors" "$TMP/f32.npy" 2e-4
# TYPE AS LEAST MOST: the relative RMS error in percent that $TMP/said tells
loss() {
    local said
    said=$(sed -n "s/.*: $1 is stored as $2\(, relative RMS error \([0-9.e-]*\) %\| without loss\)$/0\2/p" "$TMP/said")
    if awk -v x="${said:-none}" -v lo="$3" -v hi="$4" 'BEGIN {exit !(x ~ /^[0-9]/ && x + 0 >= lo && x + 0 <= hi)}'; then pass "$1 to $2: loss"; else
        fail "$1 to $2: loss is \"$said\" %, not from $3 to $4"
        cat "$TMP/said"
    fi
}
for type in auto q8; do
    check "blocks to $type" "$BIN/convert-hf" "$mixed/model.gguf" -o "$TMP/m.tess" --type $type --force
    cp "$TMP/check.out" "$TMP/said"
    for t in Q5_1 Q5_K Q6_K; do loss $t q8 0.01 0.5; done
    loss Q5_0 q8 0 0
    loss IQ4_XS q8 0.001 0.03
    case $type in
    auto) loss Q4_K q4 0.001 0.07 && loss Q2_K q4 1 5 && loss Q3_K q4 1 7 ;;
    q8) for t in Q4_K Q2_K Q3_K; do loss $t q8 0.01 0.5; done ;;
    esac
    check "blocks as $type are sound" "$BIN/inspect-model" "$TMP/m.tess" --verify deep
    logits "$TMP/$type.npy" --compute f32 --kv f32 >/dev/null
done
check "blocks as auto: near the f32 ones" "$compare" kl "$TMP/f32.npy" "$TMP/auto.npy" 0.05 0.9
check "blocks as q8: near the f32 ones" "$compare" kl "$TMP/f32.npy" "$TMP/q8.npy" 0.001 0.95
check "blocks for 3 ranks" "$BIN/convert-hf" "$mixed/model.gguf" -o "$TMP/m.tess" --tp 3 --force
logits "$TMP/auto3.npy" --compute f32 --kv f32 --tp 3 >/dev/null
check "blocks for 3 ranks: equal bits" cmp "$TMP/auto.npy" "$TMP/auto3.npy"

# An architecture that is not known is refused by name, with the list of those that are.
"$BUILD/tests/gguf_delta" apply "$ROOT/tests/gguf/gemma/gguf.delta" "$TMP/gemma.gguf" "$ROOT"/tests/models/gemma/model.safetensors
LC_ALL=C sed 's/gemma/gamma/' "$TMP/gemma.gguf" >"$TMP/unknown.gguf"
"$BIN/convert-hf" "$TMP/unknown.gguf" -o "$TMP/u.tess" >"$TMP/log" 2>&1
equal "unknown architecture: exit code" 2 $?
check "unknown architecture: named" grep -q 'architecture "gamma" is not supported; supported in GGUF files are llama, .*gemma3.*gpt-oss' "$TMP/log"
finish
