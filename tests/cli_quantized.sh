#!/usr/bin/env bash
# Checkpoints that were published in quantized form (GPTQ, AWQ, FP8, compressed-tensors, MXFP4): the weights in f32 are bit by bit
# those of the plain checkpoint beside them, logits are those of transformers, --type auto takes the codes over, what is lost is said.
# tests/tools/make-quantized.py made them.
. "$(dirname "$0")/lib.sh"
conv=$BIN/convert-hf inspect=$BIN/inspect-model run=$BIN/run-model compare=$BUILD/tests/npy_compare edit=$BUILD/tests/st_edit
hashes() { "$inspect" "$1" --tensors | awk '$1 ~ /^(f32|f16|bf16|q8|q4)$/ {print $NF, $(NF-1)}' | sort; }
types() { "$inspect" "$1" --tensors | awk -v x="$2" '$1 == x' | grep -cE '_proj'; }
a=$TMP/a.tess b=$TMP/b.tess

# NAME TYPE LOSS [N]: what auto makes of it, the largest relative RMS error in percent, how many matrices are quantized
try() {
    local name=$1 type=$2 limit=$3 n=${4:-7} dir=$ROOT/tests/quantized/$1 prompt want loss
    check "$name to f32" "$conv" "$dir" -o "$a" --type f32 --force
    check "$name: plain to f32" "$conv" "$dir/plain" -o "$b" --type f32 --force
    equal "$name: the same floats" "$(hashes "$b")" "$(hashes "$a")"
    prompt=$("$compare" ids "$dir/golden.json" prompt_ids) want=$("$compare" ids "$dir/golden.json" greedy_ids)
    equal "$name: greedy ids" "$want" "$("$run" -m "$a" --prompt-ids "$prompt" -n 8 --temp 0 --ignore-eos --print-ids \
        --logits "$TMP/a.npy" --compute f32 --kv f32 2>/dev/null)"
    check "$name: logits" "$compare" logits "$dir/golden.safetensors" "$TMP/a.npy" 2e-4
    check "$name to auto" "$conv" "$dir" -o "$a" --force
    loss=$(sed -n "s/.* is stored as $type\(.*\)$/\1/p" "$TMP/check.out")
    case $loss in
    " without loss") loss=0 ;;
    *) loss=$(sed -n 's/^, relative RMS error \([0-9.e-]*\) %$/\1/p' <<<"$loss") ;;
    esac
    if awk -v x="${loss:-9}" -v l="$limit" 'BEGIN {exit !(x + 0 <= l)}'; then pass "$name: loss of $type"; else fail "$name: loss of $type is $loss %"; fi
    equal "$name: auto is $type" "$n" "$(types "$a" "$type")"
    check "$name is sound" "$inspect" "$a" --verify deep
    check "$name for 3 ranks" "$conv" "$dir" -o "$b" --tp 3 -j 3 --force
    "$conv" "$b" -o "$b.1" --tp 1 --force >/dev/null 2>&1
    equal "$name: the same weights for any ranks" "$(hashes "$a")" "$(hashes "$b.1")"
    for t in q4 q8 bf16; do
        check "$name to $t" "$conv" "$dir" -o "$b" --type $t --force
        cp "$TMP/check.out" "$TMP/said"
        check "$name to $t says what is lost" grep -qE "is stored as $t(, relative RMS error| without loss)" "$TMP/said"
    done
}
try gptq-4 q4 0
try gptq-4-act q8 0.45 # columns out of order
try gptq-4-v2 q4 0.05
try gptq-2 q4 0.05
try gptq-8 q8 0
try awq-4 q4 0.05
try fp8-block q8 0.5
try fp8-channel q8 0.5
try fp8-tensor q8 0.5
try compressed-4 q8 0.45 # likewise
try compressed-8 q8 0.45
try mxfp4 q8 0 9

# ---- export: floats, and no word of a quantization ----
check "gptq-4 to f32 once more" "$conv" "$ROOT/tests/quantized/gptq-4" -o "$a" --type f32 --force
check "export" "$conv" "$a" --export "$TMP/hf" --force
check "export has no quantization_config" test "$(grep -c quantization_config "$TMP/hf/config.json")" = 0
check "export converts" "$conv" "$TMP/hf" -o "$b" --force
equal "export: the same floats" "$(hashes "$a")" "$(hashes "$b")"
check "refresh" "$conv" "$a" -o "$b" --refresh --force

# ---- what is refused, by name ----
copy() { rm -rf "${TMP:?}/q" && cp -r "$ROOT/tests/quantized/$1" "$TMP/q" && chmod -R u+w "$TMP/q"; }
refuse() { # NAME REGEX FROM SED
    copy "$3"
    sed -i "$4" "$TMP/q/config.json"
    expect "$1" 2 "$2" "$conv" "$TMP/q" -o "$TMP/none.tess"
    [ -e "$TMP/none.tess" ] && fail "$1: a file appeared" && rm -f "$TMP/none.tess"
}
for m in bitsandbytes aqlm hqq quanto higgs torchao quark bitnet vptq; do
    refuse "$m" "quant_method \"$m\" is not read.*dequantize" gptq-4 "s/\"quant_method\": \"gptq\"/\"quant_method\": \"$m\"/"
done
refuse "marlin" 'checkpoint_format "marlin"' gptq-4 's/"desc_act"/"checkpoint_format": "marlin", "desc_act"/'
refuse "3 bits" 'bits = 3' gptq-4 's/"bits": 4/"bits": 3/'
refuse "gemv" 'AWQ version "gemv"' awq-4 's/"gemm"/"gemv"/'
refuse "nvfp4" 'format "nvfp4-pack-quantized"' compressed-4 's/pack-quantized/nvfp4-pack-quantized/'
refuse "transforms" 'transform_config' compressed-4 's/"quantization_status"/"transform_config": {"R1": 1}, "quantization_status"/'
refuse "no method" 'quant_method is missing' gptq-4 's/"quant_method": "gptq",//'
refuse "scales without a configuration" 'no place|is missing|has type F8_E4M3' fp8-block 's/"quantization_config"/"other_config"/'
drop() { # NAME REGEX FROM TENSOR NEW-NAME: one tensor under another name
    copy "$3"
    sed -i "s/\"$4\"/\"$5\"/" "$TMP/q/model.safetensors"
    expect "$1" 2 "$2" "$conv" "$TMP/q" -o "$TMP/none.tess"
}
L='model\.layers\.0'
drop "no zeros" 'q_proj.qzeros" is missing' gptq-4 "$L.self_attn.q_proj.qzeros" "$L.self_attn.q_proj.qzeroX"
drop "no scales" 'down_proj.scales" is missing' awq-4 "$L.mlp.down_proj.scales" "$L.mlp.down_proj.scaleX"
drop "no block scales" 'k_proj.weight_scale_inv" is missing' fp8-block "$L.self_attn.k_proj.weight_scale_inv" "$L.self_attn.k_proj.weight_scale_inX"
drop "no shape" 'o_proj.weight_shape" is missing' compressed-4 "$L.self_attn.o_proj.weight_shape" "$L.self_attn.o_proj.weight_shapX"
drop "no scales of blocks" 'down_proj_scales" is missing' mxfp4 "$L.mlp.experts.down_proj_scales" "$L.mlp.experts.down_proj_scaleX"
finish
