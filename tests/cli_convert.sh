#!/usr/bin/env bash
# convert-hf as a user meets it: options, sources, shards and links (fault B05), tied heads (B01), strange configurations (B02,
# B03), re-sharding, export, hostile files (B23), full disks, kills and signals (B24).
. "$(dirname "$0")/lib.sh"
conv=$BIN/convert-hf inspect=$BIN/inspect-model edit=$BUILD/tests/st_edit
for x in "$conv" "$inspect" "$edit"; do
    [ -x "$x" ] || { fail "$x is not built"; finish; }
done
src=$ROOT/tests/data/llama-gqa
out=$TMP/o.tess
hashes() { "$inspect" "$1" --tensors --json | grep '"content_hash"'; } # in the order of names
kv() { "$inspect" "$1" --json | sed -n "s/^ *\"$2\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}$/\1/p" | head -n 1; }
none() { # NAME: no file under the final name, no temporary beside it
    if [ ! -e "$out" ] && [ -z "$(find "$TMP" -maxdepth 1 -name '.o.tess*')" ]; then pass "$1: no file"; else fail "$1: a file appeared"; rm -f "$out" "$TMP"/.o.tess*; fi
}
refuse() { # NAME STATUS REGEX ARGUMENTS...: an error, and no output
    local name=$1
    expect "$@"
    none "$name"
}
copy() { # NAME: a writable copy of the model
    rm -rf "${TMP:?}/$1"
    cp -rL "$src" "$TMP/$1"
    chmod -R u+w "$TMP/$1"
}

# ---- usage ----
expect "no arguments" 1 "SRC is missing" "$conv"
expect "no output" 1 "-o OUT" "$conv" "$src"
expect "two sources" 1 "more than one" "$conv" "$src" "$src" -o "$out"
expect "output and export" 1 "exclude" "$conv" "$src" -o "$out" --export "$TMP/x"
for v in 0 257 x -1 1.5; do expect "--tp $v" 1 "--tp" "$conv" "$src" -o "$out" --tp "$v"; done
expect "--type q9" 1 "--type" "$conv" "$src" -o "$out" --type q9
expect "--store gzip" 1 "--store" "$conv" "$src" -o "$out" --store gzip
expect "--split-max-size 1" 1 "--split-max-size" "$conv" "$src" -o "$out" --split-max-size 1
expect "unknown option" 1 "unknown option --foo" "$conv" "$src" -o "$out" --foo
expect "help" 0 "" "$conv" --help
check "help names the options" grep -q -- --split-max-size "$TMP/expect.out"
expect "version" 0 "" "$conv" --version
none "usage"

# ---- sources that are none ----
mkdir "$TMP/emptydir"
refuse "missing source" 2 "nothing" "$conv" "$TMP/nothing" -o "$out"
refuse "empty directory" 2 "emptydir: holds neither" "$conv" "$TMP/emptydir" -o "$out"
refuse "text file" 2 "lib.sh: is neither" "$conv" "$ROOT/tests/lib.sh" -o "$out"
mkfifo "$TMP/fifo"
refuse "pipe" 2 "not a regular file" "$conv" "$TMP/fifo" -o "$out"
: >"$TMP/emptydir/pytorch_model.bin"
refuse "pickle" 2 "save_pretrained" "$conv" "$TMP/emptydir" -o "$out"
refuse "refresh of a directory" 2 "is not a .tess" "$conv" "$src" -o "$out" --refresh
expect "export of a directory" 2 "is not a .tess" "$conv" "$src" --export "$TMP/x"
printf 'GGUF' >"$TMP/short.gguf"
refuse "GGUF of four bytes" 2 "short.gguf" "$conv" "$TMP/short.gguf" -o "$out"

# ---- the plain case ----
expect "convert" 0 "" "$conv" "$src" -o "$out"
hashes "$out" >"$TMP/want"
equal "weights" 30 "$(wc -l <"$TMP/want")"
expect "output is a directory" 2 "not a regular file; -o names the file" "$conv" "$src" -o "$TMP"
expect "existing output" 2 "exists already; use --force" "$conv" "$src" -o "$out"
cp "$out" "$TMP/first.tess"
expect "force" 0 "" "$conv" "$src" -o "$out" --force
check "equal input gives equal files" cmp "$out" "$TMP/first.tess"
equal "pad in the key-values" 2 "$(kv "$out" gen.pad)"
equal "family" llama "$(kv "$out" general.family)"
check "deep verify" "$inspect" "$out" --verify deep

# ---- where the files lie (B05) ----
same() { # NAME SRC
    rm -f "$TMP/s.tess"
    expect "$1" 0 "" "$conv" "$2" -o "$TMP/s.tess"
    equal "$1: weights" "$(cat "$TMP/want")" "$(hashes "$TMP/s.tess" 2>&1)"
}
same "trailing slash" "$src/"
ln -s "$src" "$TMP/link"
same "directory link" "$TMP/link"
same "the file itself" "$src/model.safetensors"
(cd "$src/.." && "$conv" llama-gqa -o "$TMP/rel.tess" --type auto) >"$TMP/log" 2>&1
equal "relative path" "$(cat "$TMP/want")" "$(hashes "$TMP/rel.tess" 2>&1)"
copy shards
rm "$TMP/shards/model.safetensors"
map='' i=0
mapfile -t names < <("$edit" "$src/model.safetensors" list)
for ((k = 0; k < ${#names[@]}; k += 6)); do
    i=$((i + 1)) f=model-$i-of-6.safetensors
    list=$(IFS=,; echo "${names[*]:k:6}")
    "$edit" "$src/model.safetensors" "$TMP/shards/$f" "only:$list"
    for n in "${names[@]:k:6}"; do map="$map${map:+,}\"$n\":\"$f\""; done
done
index=$TMP/shards/model.safetensors.index.json
put_index() { printf '{"metadata":{},"weight_map":{%s}}' "$1" >"$index"; }
put_index "$map"
same "shards" "$TMP/shards"
same "the index itself" "$index"
"$edit" "$src/model.safetensors" "$TMP/shards/consolidated.safetensors" "flip:lm_head.weight"
same "stray file beside shards" "$TMP/shards"
head_home=$(printf '%s' "$map" | tr ',' '\n' | sed -n 's/"lm_head.weight":"\(.*\)"/\1/p')
other=model-3-of-6.safetensors
[ "$head_home" = "$other" ] && other=model-2-of-6.safetensors
cp "$TMP/shards/$other" "$TMP/other"
"$edit" "$src/model.safetensors" "$TMP/shards/$other" "flip:lm_head.weight" \
    "only:lm_head.weight,$("$edit" "$TMP/other" list | tr '\n' ',' | sed 's/,$//')"
same "second copy of a tensor in another shard" "$TMP/shards"
check "and a notice" grep -q "notice:.*$other.*lm_head.weight" "$TMP/expect.err"
mkdir -p "$TMP/hub/blobs" "$TMP/hub/snapshots/x"
for f in "$TMP/shards"/*; do
    cp "$f" "$TMP/hub/blobs/$(basename "$f" | md5sum | cut -c1-32)"
    ln -s "../../blobs/$(basename "$f" | md5sum | cut -c1-32)" "$TMP/hub/snapshots/x/$(basename "$f")"
done
same "hub cache" "$TMP/hub/snapshots/x"
rm -f "$out"
cp "$src/model.safetensors" "$TMP/shards/"
refuse "index beside a single file" 2 "holds both" "$conv" "$TMP/shards" -o "$out"
rm "$TMP/shards/model.safetensors"
put_index "${map//model-3-of-6/..\/model-3-of-6}"
refuse "index that leaves the directory" 2 "plain file name" "$conv" "$TMP/shards" -o "$out"
put_index "$map,\"ghost.weight\":\"model-1-of-6.safetensors\""
refuse "index with a tensor that is not there" 2 "ghost.weight" "$conv" "$TMP/shards" -o "$out"
put_index "$map"
mv "$TMP/shards/model-3-of-6.safetensors" "$TMP/gone"
refuse "shard deleted" 2 "model-3-of-6.safetensors: cannot open" "$conv" "$TMP/shards" -o "$out"

# ---- tied and missing tensors (B01, B03) ----
variant() { # NAME SED-SCRIPT EDIT...
    copy v
    sed -i "$2" "$TMP/v/config.json"
    "$edit" "$src/model.safetensors" "$TMP/v/model.safetensors" "${@:3}"
}
tie='s/"tie_word_embeddings": false/"tie_word_embeddings": true/'
aliases() { "$inspect" "$1" --tensors --json | grep -c '"alias"'; }
variant tied "$tie" drop:lm_head.weight
expect "tied" 0 "" "$conv" "$TMP/v" -o "$out"
cp "$out" "$TMP/tied.tess"
equal "tied_head is 1" 1 "$(kv "$out" arch.tied_head)"
rm "$out"
variant untied "" drop:lm_head.weight
refuse "not tied, no head" 2 "\"lm_head.weight\" is missing" "$conv" "$TMP/v" -o "$out"
variant nokey '/tie_word_embeddings/d' drop:lm_head.weight
refuse "no key, no head" 2 "\"lm_head.weight\" is missing" "$conv" "$TMP/v" -o "$out"
variant both "$tie" copy:model.embed_tokens.weight=lm_head.weight
expect "tied and an equal head" 0 "" "$conv" "$TMP/v" -o "$out"
equal "stays tied" 1 "$(kv "$out" arch.tied_head)"
rm "$out"
variant differs "$tie"
expect "tied and another head" 0 "notice:.*lm_head.weight.*differs" "$conv" "$TMP/v" -o "$out"
equal "is untied" 0 "$(kv "$out" arch.tied_head)"
equal "with the file's head" "$(cat "$TMP/want")" "$(hashes "$out")"
rm "$out"
variant onlyhead "$tie" copy:model.embed_tokens.weight=lm_head.weight drop:model.embed_tokens.weight
expect "tied and only the head" 0 "" "$conv" "$TMP/v" -o "$out"
equal "serves as both" "$(hashes "$TMP/tied.tess")" "$(hashes "$out")"
rm "$out"
variant missing "" drop:model.layers.1.mlp.up_proj.weight
refuse "missing tensor" 2 "\"model.layers.1.mlp.up_proj.weight\" is missing" "$conv" "$TMP/v" -o "$out"
variant strange "" add:model.layers.1.self_attn.q_proj.bias=64
refuse "left over tensor" 2 "\"model.layers.1.self_attn.q_proj.bias\"" "$conv" "$TMP/v" -o "$out"
variant buffer "" add:model.layers.1.self_attn.rotary_emb.inv_freq=32
expect "known buffer" 0 "" "$conv" "$TMP/v" -o "$out"
rm "$out"
variant shape 's/"num_key_value_heads": 2/"num_key_value_heads": 4/'
refuse "shape against the configuration" 2 "k_proj.weight\" has shape 32 x 64, the configuration demands 64 x 64" "$conv" "$TMP/v" -o "$out"
for x in 's/"llama"/"mamba2"/;"mamba2" is not supported' 's/"rope_type": "default"/"rope_type": "ntk"/;"ntk" is not supported' \
    's/"hidden_act": "silu"/"hidden_act": "mish"/;"mish"' 's/"num_hidden_layers": 3/"num_hidden_layers": 3.0/;num_hidden_layers' \
    's/"use_cache": true/"quantization_config": {}/;quantization_config' 's/}//;line' \
    's/"use_cache": true/"rope_theta": 500000/;contradict' 's/LlamaFor/LlamaForSequence/;architecture'; do
    variant config "${x%%;*}"
    refuse "config ${x%%;*}" 2 "${x#*;}" "$conv" "$TMP/v" -o "$out"
done
copy v
rm "$TMP/v/config.json"
refuse "weights without config.json" 2 "config.json: is missing" "$conv" "$TMP/v" -o "$out"
rm "$TMP/v/model.safetensors"
expect "tokenizer only" 0 "" "$conv" "$TMP/v" -o "$out"
equal "is a tokenizer container" tokenizer "$(kv "$out" kind)"
rm "$out"

# ---- tokenizer.model without tokenizer.json: alone, and in a checkpoint ----
encode() { "$BIN/run-model" -m "$1" --tokenize <<<"  ab  <ctl> café" 2>&1; }
mkdir "$TMP/spm"
cp "$ROOT/tests/data/spm/bpe-plain.model" "$TMP/spm/tokenizer.model"
expect "tokenizer.model only" 0 "" "$conv" "$TMP/spm" -o "$out"
equal "tokenizer.model is a tokenizer container" tokenizer "$(kv "$out" kind)"
want=$(encode "$out")
equal "tokenizer.model gives ids" "[20, 183, 3, 105]" "$want" # as transformers gives
check "tokenizer.model: the section can be built again" "$inspect" "$out" --verify deep
expect "tokenizer.model: refresh" 0 "" "$conv" "$out" -o "$TMP/again.tess" --refresh
equal "tokenizer.model: refreshed ids" "$want" "$(encode "$TMP/again.tess")"
rm "$out" "$TMP/again.tess"
copy v
rm -f "$TMP/v/tokenizer.json"
cp "$TMP/spm/tokenizer.model" "$TMP/v/"
printf '{"tokenizer_class":"LlamaTokenizer"}' >"$TMP/v/tokenizer_config.json"
expect "checkpoint with tokenizer.model" 0 "" "$conv" "$TMP/v" -o "$out"
equal "checkpoint with tokenizer.model: ids" "$want" "$(encode "$out")"
rm "$out"
printf '{"tokenizer_class":"XLMRobertaTokenizer"}' >"$TMP/v/tokenizer_config.json"
refuse "tokenizer.model of another class" 2 "/v: tokenizer_config.json: tokenizer_class \"XLMRobertaTokenizer\"" "$conv" "$TMP/v" -o "$out"
rm "$TMP/v/tokenizer_config.json"
printf 'IQ== 0\nIg== 1\n' >"$TMP/v/tokenizer.model"
refuse "tokenizer.model of tiktoken" 2 "/v: tokenizer.model: is a list of tokens of tiktoken" "$conv" "$TMP/v" -o "$out"
head -c 4000 "$TMP/spm/tokenizer.model" >"$TMP/v/tokenizer.model"
refuse "tokenizer.model cut off" 2 "/v: tokenizer.model: is no SentencePiece model: bad field at offset" "$conv" "$TMP/v" -o "$out"

# ---- types, storage, re-sharding, splitting ----
for type in f32 f16 bf16; do
    expect "--type $type" 0 "" "$conv" "$src" -o "$TMP/$type.tess" --type "$type"
    expect "$type to bf16" 0 "" "$conv" "$TMP/$type.tess" -o "$TMP/back.tess" --type bf16 --force
    [ "$type" = f16 ] || equal "$type to bf16: weights" "$(cat "$TMP/want")" "$(hashes "$TMP/back.tess")"
done
for n in 1 2 3 4 8; do
    for store in raw zstd; do
        "$conv" "$src" -o "$TMP/n$n$store.tess" --tp "$n" --store "$store" >"$TMP/log" 2>&1 || fail "--tp $n --store $store: $(tail -n 1 "$TMP/log")"
    done
    equal "--tp $n: weights" "$(cat "$TMP/want")" "$(hashes "$TMP/n${n}raw.tess")"
done
bad=''
for n in 1 2 3 4 8; do
    for m in 1 2 3 4 8; do
        "$conv" "$TMP/n${n}zstd.tess" -o "$TMP/m.tess" --tp "$m" --store raw --force >"$TMP/log" 2>&1
        [ "$(hashes "$TMP/m.tess")" = "$(cat "$TMP/want")" ] || bad="$bad $n-$m"
    done
done
equal "re-sharding N to M" "" "$bad"
expect "split" 0 "" "$conv" "$src" -o "$TMP/split.tess" --split-max-size 128K
part=$(find "$TMP" -name 'split-00001-of-*.tess')
equal "split: weights" "$(cat "$TMP/want")" "$(hashes "$part")"
expect "joined again" 0 "" "$conv" "$part" -o "$TMP/joined.tess"
equal "joined: weights" "$(cat "$TMP/want")" "$(hashes "$TMP/joined.tess")"
expect "refresh" 0 "" "$conv" "$TMP/first.tess" -o "$TMP/fresh.tess" --refresh
"$inspect" "$TMP/first.tess" --json | sed -n '/"key_values"/,/^ }/p' >"$TMP/kv1"
"$inspect" "$TMP/fresh.tess" --json | sed -n '/"key_values"/,/^ }/p' >"$TMP/kv2"
check "refresh: same key-values" cmp "$TMP/kv1" "$TMP/kv2"
cp "$TMP/n3raw.tess" "$TMP/damaged.tess"
printf 'X' | dd of="$TMP/damaged.tess" bs=1 seek=20000 conv=notrunc 2>/dev/null
refuse "damaged source" 2 "damaged.tess: at offset" "$conv" "$TMP/damaged.tess" -o "$out" --tp 2

# ---- export ----
for n in 1 3; do
    expect "export of --tp $n" 0 "" "$conv" "$TMP/n${n}zstd.tess" --export "$TMP/export$n"
    for f in config.json generation_config.json tokenizer.json tokenizer_config.json; do
        check "export of --tp $n: $f" cmp "$src/$f" "$TMP/export$n/$f"
    done
    rm -rf "$TMP/again.tess"
    "$conv" "$TMP/export$n" -o "$TMP/again.tess" >"$TMP/log" 2>&1
    equal "export of --tp $n: weights" "$(cat "$TMP/want")" "$(hashes "$TMP/again.tess")"
done
check "exports are equal" cmp "$TMP/export1/model.safetensors" "$TMP/export3/model.safetensors"
expect "existing export" 2 "exists already" "$conv" "$TMP/first.tess" --export "$TMP/export1"
if [ -n "$SHARED" ]; then
    for d in "$SHARED"/models/*/; do
        name=$(basename "$d")
        [ -f "$d/model.safetensors" ] && ! grep -q '"num_local_experts"\|"num_experts"' "$d/config.json" || continue
        rm -rf "$TMP/e.tess" "$TMP/e"
        "$conv" "$d" -o "$TMP/e.tess" --tp 2 >"$TMP/log" 2>&1 && "$conv" "$TMP/e.tess" --export "$TMP/e" >"$TMP/log" 2>&1
        check "$name comes back byte by byte" cmp "$d/model.safetensors" "$TMP/e/model.safetensors"
    done
else
    skip "the round trip of other families: no shared data"
fi
for d in "$ROOT"/tests/models/*/; do
    name=$(basename "$d")
    rm -rf "$TMP/e"
    "$conv" "$d" -o "$TMP/e.tess" --force >"$TMP/log" 2>&1
    if grep -qE '"model_type": "(cohere|deepseek_v.|ernie4_5_moe|glm4_moe|gpt_oss|granitemoe.*|opt)"' "$d/config.json"; then
        expect "$name: no export" 2 'export of family .* is not possible' "$conv" "$TMP/e.tess" --export "$TMP/e"
        continue
    fi
    "$conv" "$TMP/e.tess" --export "$TMP/e" >"$TMP/log" 2>&1 && "$conv" "$TMP/e" -o "$TMP/e2.tess" --force >"$TMP/log" 2>&1
    equal "$name: the weights come back" "$(hashes "$TMP/e.tess")" "$(hashes "$TMP/e2.tess")"
done

# ---- OPT with projections of the embedding ----
projected() { # NAME REGEX SED-OF-CONFIG [SED-OF-WEIGHTS]
    rm -rf "$TMP/p"
    cp -rL "$ROOT/tests/models/opt-projected" "$TMP/p"
    chmod -R u+w "$TMP/p"
    sed -i "$3" "$TMP/p/config.json"
    [ -z "${4-}" ] || sed -i "$4" "$TMP/p/model.safetensors"
    refuse "projected: $1" 2 "$2" "$conv" "$TMP/p" -o "$out"
}
projected "another width" 'project_in.weight" of type BF16 does not have the shape 32 x 41' 's/"word_embed_proj_dim": 40/"word_embed_proj_dim": 41/'
projected "no way in" 'model.decoder.project_in.weight" is missing' '' 's/project_in.weight/project_xx.weight/'
projected "no way out" 'model.decoder.project_out.weight" is missing' '' 's/project_out.weight/project_xxx.weight/'
projected "no output matrix" 'lm_head.weight" is missing' '' 's/lm_head.weight/lm_heap.weight/'
projected "no width" 'embed_tokens.weight" has shape' 's/"word_embed_proj_dim": 40/"word_embed_proj_dim": 0/'

# ---- writing (B24) ----
rm -f "$out"
limited=(bash -c 'ulimit -f 64; exec "$@"' limited "$conv" "$src" -o "$out" --store raw)
refuse "file size limit" 2 "File too large" "${limited[@]}"
refuse "missing output directory" 2 "No such file" "$conv" "$src" -o "$TMP/no/such/o.tess"
if [ "$(id -u)" = 0 ] && unshare -rm true 2>/dev/null; then
    mkdir -p "$TMP/full" "$TMP/ro"
    full='mount -t tmpfs -o size=64k t "$1" && { "$2" "$3" -o "$1/o.tess" --store "$4"; rc=$?; ls -A "$1" >&2; exit $rc; }'
    for store in raw zstd; do
        expect "full disk, $store" 2 "No space left" unshare -rm sh -c "$full" sh "$TMP/full" "$conv" "$src" "$store"
        check "full disk, $store: nothing is left" sh -c '! grep -q "^\.\{0,1\}o\.tess" "$1"' sh "$TMP/expect.err"
    done
    readonly_dir='mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && exec "$2" "$3" -o "$1/o.tess"'
    expect "read-only directory" 2 "Read-only" unshare -rm sh -c "$readonly_dir" sh "$TMP/ro" "$conv" "$src"
else
    skip "full disk and read-only directory: needs user namespaces"
fi
cp "$TMP/first.tess" "$out"
expect "failed overwrite" 2 "File too large" "${limited[@]}" --force
check "the old file survives" cmp "$out" "$TMP/first.tess"
rm -f "$out"
partial=''
for i in 1 2 3 4 5 6 7 8 9 10; do
    "$conv" "$src" -o "$out" >/dev/null 2>&1 &
    pid=$!
    sleep "0.00$i"
    kill -9 "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
    [ ! -e "$out" ] || "$inspect" "$out" --verify >/dev/null 2>&1 || partial="$partial $i"
    rm -f "$out" "$TMP"/.o.tess*
done
equal "kill -9 leaves no partial file" "" "$partial"
bad=''
for i in 1 2 3 4 5 6 7 8 9; do
    for sig in INT TERM; do
        # in a shell of its own: a background job of this script would ignore SIGINT
        timeout --foreground -s "$sig" "0.00$i" bash -c 'exec "$@"' x "$conv" "$src" -o "$out" --store zstd >/dev/null 2>&1
        [ ! -e "$out" ] || "$inspect" "$out" --verify >/dev/null 2>&1 || bad="$bad $sig-$i"
        [ -z "$(find "$TMP" -maxdepth 1 -name '.o.tess*')" ] || bad="$bad $sig-$i-temporary"
        rm -f "$out"
    done
done
equal "signals leave nothing" "" "$bad"

# ---- hostile safetensors (B23) ----
copy v
hostile() { # NAME HEADER-LENGTH-BYTES HEADER
    printf "$2" >"$TMP/v/model.safetensors"
    printf '%s' "$3" >>"$TMP/v/model.safetensors"
    head -c 1024 /dev/zero >>"$TMP/v/model.safetensors"
    refuse "$1" 2 "model.safetensors" "$conv" "$TMP/v" -o "$out"
}
hostile "header of 2^64-1 bytes" '\377\377\377\377\377\377\377\377' '{}'
hostile "header past the end" '\377\377\000\000\000\000\000\000' '{}'
hostile "gap" '\074\000\000\000\000\000\000\000' '{"a":{"dtype":"U8","shape":[1000],"data_offsets":[24,1024]}}'
hostile "product wraps" '\105\000\000\000\000\000\000\000' '{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'
finish
