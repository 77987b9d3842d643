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

# An architecture that is not known is refused by name, with the list of those that are.
"$BUILD/tests/gguf_delta" apply "$ROOT/tests/gguf/gemma/gguf.delta" "$TMP/gemma.gguf" "$ROOT"/tests/models/gemma/model.safetensors
LC_ALL=C sed 's/gemma/gamma/' "$TMP/gemma.gguf" >"$TMP/unknown.gguf"
"$BIN/convert-hf" "$TMP/unknown.gguf" -o "$TMP/u.tess" >"$TMP/log" 2>&1
equal "unknown architecture: exit code" 2 $?
check "unknown architecture: named" grep -q 'architecture "gamma" is not supported; supported in GGUF files are llama, .*gemma3.*gpt-oss' "$TMP/log"
finish
