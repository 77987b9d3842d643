#!/usr/bin/env bash
# What quantization costs: the mean KL divergence of every tiny model from its float32 logits over the prompt, with INT8 KV, q8 and
# q4 weights, and q8 with INT8 KV, is at most what tests/data/kl.txt states (half more than was measured; the bits are the same on
# every machine). `KL_WRITE=FILE tests/cli_kl.sh` writes the table anew.
. "$(dirname "$0")/lib.sh"
compare=$BUILD/tests/npy_compare table=$ROOT/tests/data/kl.txt
[ -n "$SHARED" ] || skip "no shared models: only those of tests/models are tried"

logits() { # OUT.npy FILE ARGS...
    "$BIN/run-model" -m "$2" --prompt-ids "$prompt" -n 0 --print-ids --logits "$1" "${@:3}" >"$TMP/ids" 2>"$TMP/stderr" </dev/null
}
kl() { # FILE.npy: the mean KL divergence from the reference
    "$compare" kl "$TMP/ref.npy" "$1" 1e9 0 2>&1 | sed -n 's/.*mean KL \([^,]*\),.*/\1/p'
}
convert() { "$BIN/convert-hf" "$dir" -o "$1" --force "${@:2}" >"$TMP/convert.log" 2>&1 || cat "$TMP/convert.log"; }

for dir in "$ROOT"/tests/models/*/ ${SHARED:+"$SHARED"/models/*/}; do
    name=$(basename "$dir")
    [ -f "$dir/golden.json" ] && [ -f "$dir/model.safetensors" ] || continue
    prompt=$("$compare" ids "$dir/golden.json" prompt_ids)
    rm -f "$TMP"/*.npy "$TMP"/*.tess
    convert "$TMP/f.tess"
    convert "$TMP/q8.tess" --type q8
    convert "$TMP/q4.tess" --type q4
    logits "$TMP/ref.npy" "$TMP/f.tess" --compute f32 --kv f32
    logits "$TMP/1.npy" "$TMP/f.tess" --kv int8
    logits "$TMP/2.npy" "$TMP/q8.tess" --kv f32
    logits "$TMP/3.npy" "$TMP/q4.tess" --kv f32
    logits "$TMP/4.npy" "$TMP/q8.tess" --kv int8
    got="$name $(kl "$TMP/1.npy") $(kl "$TMP/2.npy") $(kl "$TMP/3.npy") $(kl "$TMP/4.npy")"
    if [ -n "${KL_WRITE:-}" ]; then
        echo "$got" | awk '{ printf "%-22s", $1; for (i = 2; i <= 5; i++) printf " %.2g", $i * 1.5; print "" }' >>"$KL_WRITE"
        continue
    fi
    check "$name: KL divergence of int8 KV, q8, q4, q8 with int8 KV" awk -v got="$got" '
        $1 == name { found = 1; n = split(got, g, " "); for (i = 2; i <= 5; i++) if (!(n == 5 && g[i] + 0 > 0 && g[i] + 0 <= $i + 0)) bad = 1; row = $0 }
        END { print "measured " got "; stated " row; exit !(found && !bad) }' name="$name" "$table"
done
finish
