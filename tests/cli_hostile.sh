#!/usr/bin/env bash
# The commands in hostile surroundings: closed descriptors, limits, odd file names, terminals in messages, pipes that end.
. "$(dirname "$0")/lib.sh"
run=$BIN/run-model conv=$BIN/convert-hf inspect=$BIN/inspect-model
src=$ROOT/tests/data/llama-gqa
m=$TMP/m.tess
"$conv" "$src" -o "$m" --store raw >"$TMP/log" 2>&1 || { fail "conversion"; cat "$TMP/log"; finish; }
text=$("$run" -m "$m" --prompt-ids 1,2,3 -n 5 --temp 0 --ignore-eos)

# ---- a closed descriptor is not given to a file ----
for closed in '1>&-' '2>&-' '1>&- 2>&-' '0<&- 1>&- 2>&-'; do
    rm -f "$TMP/out" "$TMP/c.tess"
    eval "\"$run\" -m \"$m\" --prompt-ids 1,2,3 -n 5 --temp 0 --ignore-eos -v -o \"$TMP/out\" $closed" 2>/dev/null
    equal "run-model -v -o, $closed" "$text" "$(cat "$TMP/out")"
    eval "\"$conv\" \"$src\" -o \"$TMP/c.tess\" $closed" 2>/dev/null
    check "convert-hf, $closed" "$inspect" "$TMP/c.tess" --verify deep
done
"$run" -m "$m" --prompt-ids 1,2,3 -n 5 --temp 0 2>"$TMP/err" >&-
equal "run-model, stdout closed" "2 error: stdout: cannot write: Bad file descriptor" "$? $(cat "$TMP/err")"

# ---- limits ----
mkdir "$TMP/small"
expect "logits beyond a file size limit" 2 "small/l.npy: cannot write: File too large" bash -c 'ulimit -f 1; exec "$@"' limited \
    "$run" -m "$m" --prompt-ids 1,2,3 -n 60 --ignore-eos --logits "$TMP/small/l.npy"
equal "no file is left" "" "$(ls -A "$TMP/small")"
if [ "$(id -u)" = 0 ] && unshare -rm true 2>/dev/null; then
    readonly_dir='mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && exec "$2" "$3" --export "$1/x"'
    expect "export to a read-only directory" 2 "x: cannot create the directory: Read-only" unshare -rm sh -c "$readonly_dir" sh "$TMP/small" "$conv" "$m"
else
    skip "read-only directory: needs user namespaces"
fi

# ---- an output that is no file is not replaced ----
mkfifo "$TMP/pipe"
mkdir "$TMP/dir"
for target in pipe dir; do
    expect "convert-hf --force onto a $target" 2 "$target: is a .*not a regular file" "$conv" "$src" -o "$TMP/$target" --force
    expect "run-model --logits onto a $target" 2 "$target: is not a regular file" "$run" -m "$m" --prompt-ids 1 -n 1 --logits "$TMP/$target"
done
check "the pipe is there" test -p "$TMP/pipe"

# ---- names ----
for name in 'a b' $'new\nline' 'quote"' 'é😀' '.hidden' $'esc\e[2J'; do
    cp "$m" "$TMP/$name.tess"
    equal "runs: $(printf %q "$name")" "$text" "$(cd "$TMP" && "$run" -m "$name.tess" --prompt-ids 1,2,3 -n 5 --temp 0 --ignore-eos)"
    printf x >>"$TMP/$name.tess"
    expect "one line of error: $(printf %q "$name")" 2 "extended" "$run" -m "$TMP/$name.tess" --prompt-ids 1 -n 1
    equal "one line: $(printf %q "$name")" 1 "$(wc -l <"$TMP/expect.err")"
    check "no control characters: $(printf %q "$name")" sh -c '! tr -d "\n" <"$1" | grep -q "[[:cntrl:]]"' sh "$TMP/expect.err"
done
cp "$m" "$TMP/-dash.tess"
equal "runs: -dash after --" "$text" "$(cd "$TMP" && "$run" --prompt-ids 1,2,3 -n 5 --temp 0 --ignore-eos -- -dash.tess)"

# ---- messages name their file ----
copy() { rm -rf "$TMP/v" && cp -r "$src" "$TMP/v" && chmod -R u+w "$TMP/v"; }
for change in 's/"hidden_size": 64/"hidden_size": 0/;v/config.json: arch.hidden_size' \
    's/"num_hidden_layers": 3/"num_hidden_layers": 4000000/;v/config.json: arch.n_layers' \
    's/"llama"/"a\\u001b[2J\\u009b\\nb"/;v/config.json: model family'; do
    copy
    sed -i "${change%%;*}" "$TMP/v/config.json"
    expect "config ${change%%;*}" 2 "${change#*;}" "$conv" "$TMP/v" -o "$TMP/v.tess"
    check "no control characters" sh -c '! tr -d "\n" <"$1" | LC_ALL=C.UTF-8 grep -q "[[:cntrl:]]"' sh "$TMP/expect.err"
done
copy
printf '{' >"$TMP/v/tokenizer.json"
expect "tokenizer.json cut off" 2 "/v: tokenizer.json: line 1" "$conv" "$TMP/v" -o "$TMP/v.tess"
finish
