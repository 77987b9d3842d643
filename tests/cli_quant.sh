#!/usr/bin/env bash
# q8 and q4: conversion from a checkpoint, re-sharding without change, back to floats; the same bits however the work is cut.
. "$(dirname "$0")/lib.sh"
run=$BIN/run-model convert=$BIN/convert-hf inspect=$BIN/inspect-model
hashes() { "$inspect" "$1" --tensors | awk '$1 ~ /^(f32|f16|bf16|q8|q4)$/ {print $(NF-1), $NF}' | sort; }
types() { "$inspect" "$1" --tensors | awk '$1 ~ /^(f32|f16|bf16|q8|q4)$/ {print $1}' | sort | uniq -c | tr -s ' \n' ' '; }
for family in llama-gqa qwen3-moe gpt2; do
    src=$SHARED/models/$family
    if [ -z "$SHARED" ] || [ ! -f "$src/config.json" ]; then
        skip "no shared checkpoint of $family"
        continue
    fi
    for type in q8 q4; do
        a=$TMP/$family-$type.tess b=$TMP/$family-$type-3.tess c=$TMP/$family-$type-1.tess
        check "$family to $type" "$convert" "$src" -o "$a" --type $type
        check "$family $type is sound" "$inspect" "$a" --verify deep
        check "$family $type for 3 ranks" "$convert" "$a" -o "$b" --tp 3
        check "$family $type for 1 again" "$convert" "$b" -o "$c" --tp 1
        equal "$family $type: moved without change" "$(hashes "$a")" "$(hashes "$b")"
        check "$family $type: the same file" cmp <(hashes "$a") <(hashes "$c")
        check "$family $type to f32" "$convert" "$a" -o "$TMP/f.tess" --type f32 --force
        check "$family $type to f32 from 3 ranks" "$convert" "$b" -o "$TMP/g.tess" --type f32 --force
        equal "$family $type: the same floats" "$(hashes "$TMP/f.tess")" "$(hashes "$TMP/g.tess")"
        ids=$(seq -s , 3 40)
        for kv in f32 int8; do
            "$run" -m "$a" --prompt-ids "$ids" -n 8 --temp 0 --ignore-eos --print-ids --kv $kv -t 1 --logits "$TMP/a.npy" >"$TMP/ids1" 2>"$TMP/e" </dev/null
            "$run" -m "$b" --prompt-ids "$ids" -n 8 --temp 0 --ignore-eos --print-ids --kv $kv -t 4 --tp 4 -ub 5 --page 16 --logits "$TMP/b.npy" >"$TMP/ids2" 2>"$TMP/e" </dev/null
            check "$family $type, KV $kv: equal bits with 4 ranks, chunks of 5" cmp "$TMP/a.npy" "$TMP/b.npy"
        done
        "$run" -m "$a" --prompt-ids "$ids" -n 4 --temp 0 --ignore-eos --print-ids --kv f32 --compute f32 --logits "$TMP/a.npy" >"$TMP/ids1" 2>"$TMP/e" </dev/null
        "$run" -m "$TMP/f.tess" --prompt-ids "$ids" -n 4 --temp 0 --ignore-eos --print-ids --kv f32 --logits "$TMP/b.npy" >"$TMP/ids2" 2>"$TMP/e" </dev/null
        check "$family $type: --compute f32 is the model of its floats" cmp "$TMP/a.npy" "$TMP/b.npy"
    done
done
finish
