#!/usr/bin/env bash
# inspect-model: what it prints, its exit codes, hostile files.
. "$(dirname "$0")/lib.sh"
inspect=$BIN/inspect-model
raw=$ROOT/tests/data/container-1.0-raw.tess zstd=$ROOT/tests/data/container-1.0-zstd.tess
[ -x "$inspect" ] || { skip "inspect-model is not built" && finish; }

has() { # NAME TEXT COMMAND...: the output has the text
    local name=$1 text=$2
    shift 2
    "$@" >"$TMP/has.out" 2>&1
    if grep -qF -- "$text" "$TMP/has.out"; then pass "$name"; else fail "$name" && head -5 "$TMP/has.out"; fi
}
damage() { # FROM TO OFFSET: one byte changed
    cp "$1" "$2" && printf '\x55' | dd of="$2" bs=1 seek="$3" conv=notrunc status=none
}
offset_of() { "$inspect" "$1" --json --tensors | tr -d ' \n' | sed -E "s/.*\"name\":\"$2\"[^}]*\"pieces\":\[\{[^}]*\"offset\":([0-9]+).*/\1/"; }

for f in "$raw" "$zstd"; do
    has "summary of $(basename "$f")" "tensors" "$inspect" "$f"
    for depth in quick full deep; do
        equal "verify $depth $(basename "$f")" OK "$("$inspect" "$f" --verify $depth | tail -n 1)"
    done
    has "JSON of $(basename "$f")" '"kind": "model"' "$inspect" "$f" --json --tensors
done
has "tensors" "zz -> bf16" "$inspect" "$raw" --tensors
has "chunks" "raw" "$inspect" "$raw" --chunks vector
has "blobs" "tokenizer.json" "$inspect" --blobs "$raw"
equal "both files have the same uuid" "$("$inspect" "$raw" | grep uuid)" "$("$inspect" "$zstd" | grep uuid)"

expect "no file" 1 "no file" "$inspect"
expect "unknown option" 1 "unknown option" "$inspect" "$raw" --frobnicate
expect "unknown tensor" 1 "no tensor nothing" "$inspect" "$raw" --chunks nothing
expect "plan without a model" 2 "no model" "$inspect" "$raw" --plan 2
has "families" "model_type of config.json: llama, mistral, qwen2" "$inspect" --families
has "families: language parts" "falcon, gemma3, mistral3" "$inspect" --families
has "families of GGUF" "general.architecture of GGUF: llama, " "$inspect" --families
expect "plan 0" 1 "--plan" "$inspect" "$raw" --plan 0
expect "missing file" 2 "No such file" "$inspect" "$TMP/missing"
expect "directory" 2 "directory" "$inspect" "$TMP"
expect "not a container" 2 "not a Tessera container" "$inspect" "$0"
expect "verify: usage" 3 "deeper" "$inspect" "$raw" --verify=deeper
expect "verify: no file" 3 "no file" "$inspect" --verify
expect "verify: missing file" 2 "No such file" "$inspect" "$TMP/missing" --verify

at=$(offset_of "$raw" vector)
damage "$raw" "$TMP/data.tess" "$at"
expect "damaged data: the index is fine" 0 "" "$inspect" "$TMP/data.tess"
expect "damaged data: quick" 0 "" "$inspect" "$TMP/data.tess" --verify quick
expect "damaged data: full" 1 "is damaged" "$inspect" "$TMP/data.tess" --verify
expect "--verify of an unknown depth" 3 "takes quick, full or deep" "$inspect" "$raw" --verify hard
has "damaged data: the place is told" "tensor=vector piece=0 chunk=0" "$inspect" "$TMP/data.tess" --verify
equal "damaged data: last line" "CORRUPT 1 errors" "$("$inspect" "$TMP/data.tess" --verify 2>/dev/null | tail -n 1)"
damage "$raw" "$TMP/head.tess" 100
expect "damaged header" 2 "header" "$inspect" "$TMP/head.tess"
expect "damaged header: verify" 1 "header" "$inspect" "$TMP/head.tess" --verify
head -c 20000 "$raw" >"$TMP/cut.tess"
expect "cut file" 2 "cut off" "$inspect" "$TMP/cut.tess"
: >"$TMP/empty"
expect "empty file" 2 "is empty" "$inspect" "$TMP/empty"
mkfifo "$TMP/fifo"
expect "pipe" 2 "not a regular file" "$inspect" "$TMP/fifo"
finish
