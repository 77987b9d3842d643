#!/usr/bin/env bash
# convert-hf --lora: adapters of tests/lora (made by tests/tools/make-lora.py with PEFT) merged into checkpoints and containers; logits
# within 2e-4 of PEFT's in float32, the same for any type of source and any ranks; what is not understood is refused by name.
. "$(dirname "$0")/lib.sh"
conv=$BIN/convert-hf run=$BIN/run-model inspect=$BIN/inspect-model compare=$BUILD/tests/npy_compare
lora=$ROOT/tests/lora a=$TMP/a.tess b=$TMP/b.tess
hashes() { "$inspect" "$1" --tensors | awk '$1 ~ /^(f32|f16|bf16|q8|q4)$/ {print $NF, $(NF-1)}' | sort; }
like_peft() { # NAME FILE: logits and ids of the adapter's goldens
    local prompt want
    prompt=$("$compare" ids "$lora/$1/golden.json" prompt_ids) want=$("$compare" ids "$lora/$1/golden.json" greedy_ids)
    equal "$1: greedy ids" "$want" "$("$run" -m "$2" --prompt-ids "$prompt" -n 8 --temp 0 --ignore-eos --print-ids --logits "$TMP/l.npy" \
        --compute f32 --kv f32 2>/dev/null)"
    check "$1: logits" "$compare" logits "$lora/$1/golden.safetensors" "$TMP/l.npy" 2e-4
}
try() { # NAME ADAPTERS...
    local name=$1 base args=() x
    shift
    base=$(cat "$lora/$name/base.txt")
    case $base in
    shared/*)
        [ -n "$SHARED" ] || { skip "no shared checkpoint for $name"; return; }
        base=$SHARED/models/${base#shared/}
        ;;
    *) base=$ROOT/tests/$base ;;
    esac
    for x; do args+=(--lora "$lora/$x"); done
    check "$name: merged" "$conv" "$base" -o "$a" --type f32 "${args[@]}" --force
    like_peft "$name" "$a"
    check "$name: base" "$conv" "$base" -o "$TMP/base.tess" --tp 2 --type f32 --force
    check "$name: merged into a container" "$conv" "$TMP/base.tess" -o "$b" "${args[@]}" -j 3 --force
    equal "$name: the same weights" "$(hashes "$a")" "$(hashes "$b")"
    for t in bf16 q8; do # rounded once, from the merged values
        check "$name: to $t" "$conv" "$base" -o "$b" --type $t "${args[@]}" --force
        check "$name: f32 to $t" "$conv" "$a" -o "$TMP/c.tess" --type $t --force
        equal "$name: the same $t" "$(hashes "$TMP/c.tess" | grep proj)" "$(hashes "$b" | grep proj)"
    done
}
try llama llama
try llama-more llama=0.5 llama-more=1.5
try phi3 phi3
try deepseek deepseek
try gpt2 gpt2
base=$ROOT/tests/data/llama-gqa
check "scale 0 changes nothing" "$conv" "$base" -o "$a" --type f32 --lora "$lora/llama=0" --force
check "base alone" "$conv" "$base" -o "$b" --type f32 --force
equal "scale 0: the same weights" "$(hashes "$b")" "$(hashes "$a")"
check "merged in bf16" "$conv" "$base" -o "$a" --lora "$lora/llama" --force
check "export with an adapter" "$conv" "$b" --export "$TMP/hf" --lora "$lora/llama" --force
check "export converts" "$conv" "$TMP/hf" -o "$TMP/c.tess" --force
check "merged in f32" "$conv" "$base" -o "$b" --type f32 --lora "$lora/llama" --force
equal "export: the same weights" "$(hashes "$b")" "$(hashes "$TMP/c.tess")"

# ---- refused ----
edit() { # NAME REGEX SED: the adapter of llama with another configuration
    rm -rf "$TMP/x" && cp -r "$lora/llama" "$TMP/x" && chmod -R u+w "$TMP/x"
    sed -i "$3" "$TMP/x/adapter_config.json"
    expect "$1" 2 "$2" "$conv" "$base" -o "$TMP/none.tess" --lora "$TMP/x"
    [ ! -e "$TMP/none.tess" ] || { fail "$1: a file appeared"; rm -f "$TMP/none.tess"; }
}
edit "DoRA" '"use_dora"' 's/"use_dora": false/"use_dora": true/'
edit "modules_to_save" '"modules_to_save"' 's/"modules_to_save": null/"modules_to_save": ["lm_head"]/'
edit "biases" 'bias "all"' 's/"bias": "none"/"bias": "all"/'
edit "lora_bias" '"lora_bias"' 's/"lora_bias": false/"lora_bias": true/'
edit "target_parameters" '"target_parameters"' 's/"target_parameters": null/"target_parameters": ["x"]/'
edit "an option of tomorrow" '"new_option"' 's/"r": 4/"r": 4, "new_option": 1/'
edit "PiSSA" 'init_lora_weights "pissa"' 's/"init_lora_weights": true/"init_lora_weights": "pissa"/'
edit "another method" 'peft_type "IA3"' 's/"LORA"/"IA3"/'
edit "another rank" 'does not have the shape' 's/"r": 4/"r": 5/'
edit "a pattern of alpha" 'alpha_pattern' 's/"alpha_pattern": {}/"alpha_pattern": {".*q_proj": 3}/'
edit "no number" 'lora_alpha' 's/"lora_alpha": 10/"lora_alpha": "x"/'
expect "another base" 2 'does not have the shape|has no place' "$conv" "$ROOT/tests/models/granite" -o "$TMP/none.tess" --lora "$lora/llama"
expect "no adapter" 2 'adapter_config.json' "$conv" "$base" -o "$TMP/none.tess" --lora "$TMP"
rm -f "$TMP/x/adapter_model.safetensors" && : >"$TMP/x/adapter_model.bin" && cp "$lora/llama/adapter_config.json" "$TMP/x"
expect "pickle" 2 'pickle' "$conv" "$base" -o "$TMP/none.tess" --lora "$TMP/x"
finish
