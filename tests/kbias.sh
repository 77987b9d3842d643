# kbias.sh - sourced behind lib.sh by tests of int8 KV beside a large K bias; uses $convert and $edit.

# biased FAMILY BIAS EDIT: $TMP/FAMILY-BIAS.tess is that model with some K biases set, the B of EDIT being BIAS, and a context of
# 1024. What the converter says goes to $TMP/out.
biased() {
    local src=$ROOT/tests/models/$1 dir=$TMP/$1-$2 b=$2 edits=() l
    mkdir -p "$dir"
    cp "$src"/*.json "$dir"
    sed -i 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 1024/' "$dir/config.json"
    for l in $("$edit" "$src/model.safetensors" list | sed -n 's/.*layers\.\([0-9]*\)\.self_attn\.k_proj\.bias/\1/p'); do
        edits+=("put:model.layers.$l.self_attn.k_proj.bias=${3//B/$b}")
    done
    [ ${#edits[@]} -gt 0 ] && "$edit" "$src/model.safetensors" "$dir/model.safetensors" "${edits[@]}" &&
        "$convert" "$dir" -o "$dir.tess" --type f32 --force >"$TMP/out" 2>&1
}
