#!/usr/bin/env bash
# reading.sh - what four ranks on devices read of a file: no more than it holds by 2 %, whether it was written for four or for one, and
# no more than `inspect-model --plan 4` says.
. "$(dirname "$0")/../lib.sh"
reader=$BUILD/tests/t_cuda_read
[ -x "$reader" ] || reader=$BUILD/cuemu/tests/t_cuda_read
[ -x "$reader" ] || { skip "$reader is not built" && finish; }

# The sum over N ranks.
plan() { "$BIN/inspect-model" "$1" --plan "$2" --json | tr ',{}' '\n' | awk -F: '/"read_bytes"/ { s += $2 } END { print s + 0 }'; }

for name in llama-gqa mixtral-moe gemma3 llama-3of9heads qwen2; do
    dir=${SHARED:-/nonexistent}/models/$name
    [ -f "$dir/config.json" ] || dir=$ROOT/tests/data/$name
    [ -f "$dir/config.json" ] || continue
    for tp in 4 1; do
        "$BIN/convert-hf" "$dir" -o "$TMP/m.tess" --tp $tp --force >"$TMP/convert.log" 2>&1 || cat "$TMP/convert.log"
        CUEMU_MODEL=$TMP/m.tess CUEMU_READ_MOST=$(plan "$TMP/m.tess" 4) \
            check "$name, written for $tp: read on four ranks" "$reader"
    done
done
finish
