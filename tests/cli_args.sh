#!/usr/bin/env bash
# run-model as a user meets it: options, exit codes, prompt bytes, stop texts, signals, pipes, damaged files.
. "$(dirname "$0")/lib.sh"
run=$BIN/run-model
if [ ! -x "$run" ]; then
    fail "run-model is not built"
    finish
fi
dir=$ROOT/tests/data/llama-gqa
m=$TMP/m.tess
"$BIN/convert-hf" "$dir" -o "$m" >"$TMP/convert.log" 2>&1 || { fail "conversion of $dir"; cat "$TMP/convert.log"; finish; }
prompt=$("$BUILD/tests/npy_compare" ids "$dir/golden.json" prompt_ids)
greedy=$("$BUILD/tests/npy_compare" ids "$dir/golden.json" greedy_ids)
ids() { "$run" -m "$m" --temp 0 --ignore-eos --print-ids "$@" </dev/null; }
text() { "$run" -m "$m" --prompt-ids "$prompt" --temp 0 --ignore-eos "$@" </dev/null; }

# ---- usage ----
expect "no arguments" 1 "no model" "$run"
expect "unknown option" 1 "unknown option --foo" "$run" -m "$m" --foo
expect "missing value" 1 "-n needs a value" "$run" -m "$m" -n
for v in -1 nan inf "" 1e400 0.5x; do expect "--temp '$v'" 1 "--temp" "$run" -m "$m" -p a --temp "$v"; done
for v in 0 -1 2147483648 9223372036854775808 x 4Q; do expect "-c $v" 1 "-c:" "$run" -m "$m" -p a -c "$v"; done
for v in 0 9 1.5; do expect "--tp $v" 1 "--tp" "$run" -m "$m" -p a --tp "$v"; done
for v in 0 -2 1025 1k x; do expect "-t $v" 1 "-t:" "$run" -m "$m" -p a -t "$v"; done
expect "-t -1 is all CPUs" 0 "" "$run" -m "$m" -p a -n 1 -t -1
expect "-n -2" 1 "-n:" "$run" -m "$m" -p a -n -2
expect "--top-p 1.5" 1 "--top-p" "$run" -m "$m" -p a --top-p 1.5
expect "--page 20" 1 "--page" "$run" -m "$m" -p a --page 20
expect "--kv q3" 1 "--kv" "$run" -m "$m" -p a --kv q3
expect "empty --stop" 1 "--stop" "$run" -m "$m" -p a --stop ""
expect "two prompts" 1 "only one of" "$run" -m "$m" -p a -f x
expect "two modes" 1 "only one of" "$run" -m "$m" --tokenize --detokenize
expect "bad --prompt-ids" 1 "at byte 2" "$run" -m "$m" --prompt-ids 1,x
expect "id outside the vocabulary" 1 "320" "$run" -m "$m" --prompt-ids 1,320
expect "system message without a template" 1 "chat template" "$run" -m "$m" -p a -sys b
expect "help" 0 "" "$run" --help
check "help names every mode" grep -q -- --render-chat "$TMP/expect.out"
expect "version" 0 "" "$run" --version
check "version on stdout" grep -q "^run-model (tessera 0.1.0; cpu: .*)$" "$TMP/expect.out"
expect "--stream sometimes" 1 "--stream" "$run" -m "$m" -p a --stream sometimes
expect "--stream on the CPU" 1 "nothing to stream" "$run" -m "$m" -p a --stream on
expect "--stream as it must be" 0 "" "$run" -m "$m" -p a -n 1 --stream auto
expect "list of devices" 0 "" "$run" --list-devices
check "list of devices names the CPU" grep -q "^cpu " "$TMP/expect.out"
check "list of devices says what there is of CUDA" grep -q "^cuda" "$TMP/expect.out"
expect "devices cpu" 0 "" "$run" -m "$m" --devices cpu -p a -n 1
expect "devices of another kind" 1 "must be cpu, cuda, or numbers" "$run" -m "$m" --devices tpu:0 -p a -n 1
expect "devices without number" 1 "must be cpu, cuda, or numbers" "$run" -m "$m" --devices cuda:0, -p a -n 1
expect "too many devices" 1 "at most 8" "$run" -m "$m" --devices cuda:0,0,0,0,0,0,0,0,0 -p a -n 1
expect "a device that is not there" 4 "CUDA" "$run" -m "$m" --devices cuda:77 -p a -n 1

# ---- files ----
expect "missing model" 2 "none.tess" "$run" -m "$TMP/none.tess" -p a
expect "model is a directory" 2 "directory" "$run" -m "$TMP" -p a
expect "missing prompt file" 2 "nofile" "$run" -m "$m" -f "$TMP/nofile"
expect "prompt file is a directory" 2 "irectory" "$run" -m "$m" -f "$TMP"
expect "output in a missing folder" 2 "no/out" "$run" -m "$m" -p a -n 1 -o "$TMP/no/out"
expect "--logits to a device" 2 "not a regular file" "$run" -m "$m" -p a -n 1 --logits /dev/null
mkfifo "$TMP/fifo"
expect "model is a pipe" 2 "pipe" "$run" -m "$TMP/fifo" -p a
: >"$TMP/empty"
expect "model is empty" 2 "empty" "$run" -m "$TMP/empty" -p a
expect "model is text" 2 "lib.sh" "$run" -m "$ROOT/tests/lib.sh" -p a
size=$(stat -c %s "$m")
for cut in 1 7 8 100 4096 $((size / 2)) $((size - 1)); do
    head -c "$cut" "$m" >"$TMP/cut.tess"
    expect "model cut at $cut" 2 "cut.tess" "$run" -m "$TMP/cut.tess" -p a -n 1
    [ -s "$TMP/expect.out" ] && fail "text from a damaged file"
done

# ---- generation ----
equal "greedy ids" "$greedy" "$(ids --prompt-ids "$prompt" -n 24 --compute f32 --kv f32)"
equal "-n 0 writes nothing" "0:" "$(ids --prompt-ids "$prompt" -n 0 >"$TMP/o"; echo "$?:$(cat "$TMP/o")")"
equal "model as a plain argument" "$(ids --prompt-ids 1,5 -n 4)" "$("$run" "$m" --temp 0 --ignore-eos --print-ids --prompt-ids 1,5 -n 4)"
equal "same seed, same ids" "$(ids --prompt-ids 1,5 -n 20 --temp 1.5 --seed 7)" "$(ids --prompt-ids 1,5 -n 20 --temp 1.5 --seed 7 -t 1 --tp 2)"
[ "$(ids --prompt-ids 1,5 -n 20 --temp 1.5)" != "$(ids --prompt-ids 1,5 -n 20 --temp 1.5)" ]
check "new seeds differ" test $? -eq 0
for t in 1e-9 1e-30; do equal "temperature $t is greedy" "$greedy" "$(ids --prompt-ids "$prompt" -n 24 --temp $t --compute f32 --kv f32)"; done
"$run" -m "$m" --prompt-ids 1,5 -n 3 --temp 1 -v >"$TMP/o" 2>"$TMP/e" </dev/null
check "-v prints the seed" grep -qE "seed [0-9]+" "$TMP/e"
"$run" -m "$m" --prompt-ids 1,5 -n 3 --temp 1 >"$TMP/o" 2>"$TMP/e" </dev/null
equal "stderr is empty without -v" "" "$(cat "$TMP/e")"
third=$(echo "$greedy" | cut -d, -f3)
equal "--stop-id ends with that id" "$(echo "$greedy" | cut -d, -f1-3)" "$(ids --prompt-ids "$prompt" -n 24 --stop-id "$third" --compute f32 --kv f32)"
expect "prompt longer than the context" 1 "33.*32|32.*33" "$run" -m "$m" -c 32 --prompt-ids "$(seq -s, 3 35)"
equal "context ends the output" 3 "$(ids -c 32 --prompt-ids "$(seq -s, 3 32)" -n 10 | awk -F, '{print NF}')"
equal "a full prompt gives one id" 1 "$(ids -c 32 --prompt-ids "$(seq -s, 3 34)" -n 10 | awk -F, '{print NF}')"
expect "context larger than the model's" 1 "512" "$run" -m "$m" -c 100000 -p a
equal "--echo with ids" "1,5,$(ids --prompt-ids 1,5 -n 3)" "$(ids --prompt-ids 1,5 -n 3 --echo)"
text -n 24 -o "$TMP/out.txt" >"$TMP/o"
equal "-o writes the file" "$(text -n 24 | od -c)" "$(od -c <"$TMP/out.txt")"
equal "-o leaves stdout empty" "" "$(cat "$TMP/o")"
rm -f "$TMP/l.npy"
ids --prompt-ids 1,5,7 -n 4 --logits "$TMP/l.npy" >/dev/null
equal "--logits: 7 rows" $((128 + 7 * 320 * 4)) "$(stat -c %s "$TMP/l.npy")"
ids --prompt-ids 1,5,7 -n 0 --logits "$TMP/l.npy" >/dev/null
equal "--logits -n 0: 3 rows" $((128 + 3 * 320 * 4)) "$(stat -c %s "$TMP/l.npy")"

# ---- models that are odd ----
variant() { # NAME: a copy of the checkpoint to change, in $v
    v=$TMP/$1
    cp -r "$dir" "$v"
}
variant eos
sed -i "s/\"eos_token_id\": 2/\"eos_token_id\": [300, $third]/" "$v/generation_config.json"
check "conversion with a list of end ids" "$BIN/convert-hf" "$v" -o "$TMP/eos.tess"
equal "a list of end ids stops the output" "$(echo "$greedy" | cut -d, -f1-3)" "$("$run" -m "$TMP/eos.tess" --prompt-ids "$prompt" -n 24 --temp 0 --print-ids --compute f32 --kv f32 </dev/null)"
equal "--ignore-eos goes on" "$greedy" "$("$run" -m "$TMP/eos.tess" --prompt-ids "$prompt" -n 24 --temp 0 --print-ids --ignore-eos --compute f32 --kv f32 </dev/null)"

variant nan
offset=$("$BUILD/tests/npy_compare" offset "$v/model.safetensors" lm_head.weight)
for i in $(seq 64); do printf '\300\177'; done | dd of="$v/model.safetensors" bs=1 seek=$((offset + 7 * 128)) conv=notrunc status=none
check "conversion with NaN weights" "$BIN/convert-hf" "$v" -o "$TMP/nan.tess"
expect "NaN logits are an error" 5 "not a number" "$run" -m "$TMP/nan.tess" --prompt-ids 1,5 -n 4 --temp 0
equal "NaN logits give no text" "" "$(cat "$TMP/expect.out")"

variant long
sed -i 's/"max_position_embeddings": 512/"max_position_embeddings": 16777216/' "$v/config.json"
if "$BIN/convert-hf" "$v" -o "$TMP/long.tess" >"$TMP/convert.log" 2>&1; then
    # 16 M tokens of f32 KV are 12.9 GB here; a limit of 3 GB stands for a small machine (not with sanitizers, which map more).
    if grep -q fsanitize "$BUILD/flags"; then skip "no memory limit under sanitizers"; else
        equal "a long context takes no memory ahead" "$(ids --prompt-ids 1,5 -n 4 --kv f32)" \
            "$(ulimit -v 3000000; "$run" -m "$TMP/long.tess" --prompt-ids 1,5 -n 4 --temp 0 --ignore-eos --print-ids --kv f32 </dev/null)"
    fi
else
    fail "conversion with a long context: $(cat "$TMP/convert.log")"
fi
# 824 GB of KV memory, asked for: said at once, with both numbers.
sed -i 's/"max_position_embeddings": 16777216/"max_position_embeddings": 1073741824/' "$v/config.json"
check "conversion with a context of 2^30" "$BIN/convert-hf" "$v" -o "$TMP/long.tess" --force
expect "a context beyond the memory" 3 "a context of 1073741824 tokens needs [0-9]+ MB of KV memory, [0-9]+ MB are available" \
    "$run" -m "$TMP/long.tess" --prompt-ids 1,5 -n 4 --kv f32 -c 1073741824

# ---- stop texts ----
whole=$(text -n 24)
stop_at() { printf '%s' "${whole%%"$1"*}"; }
length=${#whole}
if [ "$length" -ge 6 ]; then
    one=${whole:3:1} two=${whole:2:2} three=${whole:2:3}
    for s in "$one" "$two" "$three"; do equal "--stop in the text" "$(stop_at "$s")" "$(text -n 24 --stop "$s")"; done
    equal "--stop that never comes" "$whole" "$(text -n 24 --stop "${two}never")"
    equal "--stop that only begins at the end" "$whole" "$(text -n 24 --stop "${whole: -1}never")"
    equal "the first of two --stop" "$(stop_at "$three")" "$(text -n 24 -r "zzz$three" --stop "$three")"
fi

# ---- prompt bytes ----
same_ids() { # NAME FORMAT: the same bytes by file and by pipe give the same ids as --tokenize --add-special
    printf "$2" >"$TMP/bytes"
    local want
    want=$("$run" -m "$m" --tokenize --add-special <"$TMP/bytes" | tr -d '[] \n')
    equal "$1 by file" "$want" "$("$run" -m "$m" -bf "$TMP/bytes" -n 0 --echo --print-ids </dev/null)"
    equal "$1 by pipe" "$want" "$("$run" -m "$m" -n 0 --echo --print-ids <"$TMP/bytes")"
    equal "$1 by -p -" "$want" "$("$run" -m "$m" -p - -n 0 --echo --print-ids <"$TMP/bytes")"
}
same_ids "last newline" 'a\n'
same_ids "carriage returns" 'a\r\nb\r\n'
same_ids "NUL byte" 'a\0b'
same_ids "byte order mark" '\357\273\277a'
same_ids "invalid UTF-8" 'a\377\300b'
printf 'a\n' >"$TMP/bytes"
equal "-f drops one newline" "$("$run" -m "$m" -p a -n 0 --echo --print-ids </dev/null)" "$("$run" -m "$m" -f "$TMP/bytes" -n 0 --echo --print-ids </dev/null)"
equal "-e" "$(printf 'x\ty' | "$run" -m "$m" -n 0 --echo --print-ids)" "$("$run" -m "$m" -e -p 'x\ty' -n 0 --echo --print-ids </dev/null)"
check "empty prompt starts from the BOS" timeout 5 "$run" -m "$m" -n 2 --temp 0
for s in "hello world" " two  spaces" "née 日本 😀" "$(printf 'line\nline')"; do
    equal "detokenize of tokenize: ${s%%$'\n'*}" "$s" "$(printf '%s' "$s" | "$run" -m "$m" --tokenize | "$run" -m "$m" --detokenize)"
done
expect "--tokenize with -p" 1 "comes from stdin" "$run" -m "$m" --tokenize -p text
expect "--ppl with -f" 1 "are for generating" "$run" -m "$m" --ppl "$m" -f "$m"
expect "-o and --logits onto one file" 1 "name the same file" "$run" -m "$m" -p x -n 1 -o "$TMP/same" --logits "$TMP/same"
expect "--detokenize of no array" 1 "JSON array" "$run" -m "$m" --detokenize
out=$(printf '{"messages":[{"role":"user","content":"x\\u0022"}],"template":"[{{ messages[0].content }}]"}' | "$run" --render-chat)
equal "--render-chat without a model" '[x"]' "$out"
chat=$("$run" -m "$m" --chat-template '<{{ messages[0].role }}:{{ messages[0].content }}>' -p hey -n 0 --echo </dev/null)
equal "--chat-template" "<user:hey>" "$chat"
printf '{"windows": [[1,5,7,9],[1,8]]}' >"$TMP/w.json"
check "--ppl" sh -c "'$run' -m '$m' --ppl '$TMP/w.json' | grep -q '\"n_tokens\": 4'"
# ---- --kl ----
value() { "$BUILD/tests/npy_compare" number "$TMP/kl.json" "$1"; }
check "--ppl with --logits" "$run" -m "$m" --ppl "$TMP/w.json" --logits "$TMP/ref.npy" --kv f32
"$run" -m "$m" --ppl "$TMP/w.json" --kl "$TMP/ref.npy" --kv f32 >"$TMP/kl.json"
equal "--kl of the same logits" "0 0 1" "$(value mean_kl) $(value max_kl) $(value same_best)"
equal "--kl: the reference's mean_nll" "$(value mean_nll)" "$(value reference_mean_nll)"
"$run" -m "$m" --ppl "$TMP/w.json" --kl "$TMP/ref.npy" --kv int8 -ub 2 >"$TMP/kl.json"
check "--kl: int8 KV differs a little" awk -v kl="$(value mean_kl)" -v max="$(value max_kl)" 'BEGIN { exit !(kl > 0 && kl < 0.01 && max >= kl) }'
"$run" -m "$m" --ppl "$TMP/w.json" --logits "$TMP/int8.npy" --kv int8 >"$TMP/out"
check "--kl agrees with another program" sh -c "'$BUILD/tests/npy_compare' kl '$TMP/ref.npy' '$TMP/int8.npy' $(value mean_kl | awk '{ printf "%.9g", $1 * 1.000001 }') 0 &&
    ! '$BUILD/tests/npy_compare' kl '$TMP/ref.npy' '$TMP/int8.npy' $(value mean_kl | awk '{ printf "%.9g", $1 * 0.999999 }') 0"
expect "--kl without --ppl" 1 "goes with --ppl" "$run" -m "$m" -p x --kl "$TMP/ref.npy"
expect "--kl and --logits" 1 "only one of" "$run" -m "$m" --ppl "$TMP/w.json" --kl "$TMP/ref.npy" --logits "$TMP/x.npy"
expect "--kl: no such file" 2 "none.npy: No such file" "$run" -m "$m" --ppl "$TMP/w.json" --kl "$TMP/none.npy"
expect "--kl: no NumPy file" 2 "w.json: is not a NumPy file" "$run" -m "$m" --ppl "$TMP/w.json" --kl "$TMP/w.json"
expect "--kl: a directory" 2 "is not a regular file" "$run" -m "$m" --ppl "$TMP/w.json" --kl "$TMP"
head -c 1000 "$TMP/ref.npy" >"$TMP/cut.npy"
expect "--kl: cut off" 2 "shape and its size disagree" "$run" -m "$m" --ppl "$TMP/w.json" --kl "$TMP/cut.npy"
printf '{"windows": [[1,5,7]]}' >"$TMP/w2.json"
expect "--kl: another text" 2 "has 4 predictions, the text has 2" "$run" -m "$m" --ppl "$TMP/w2.json" --kl "$TMP/ref.npy"
sed 's/, \([0-9]*\)), }/, 1  ), }/' "$TMP/ref.npy" >"$TMP/cols.npy"
expect "--kl: another vocabulary" 2 "cols.npy: " "$run" -m "$m" --ppl "$TMP/w.json" --kl "$TMP/cols.npy"
printf '{"windows": [[1],[]]}' >"$TMP/w2.json"
expect "--ppl: nothing to predict" 2 "nothing to predict" "$run" -m "$m" --ppl "$TMP/w2.json"
printf '{"windows": [[1,5,7,99999]]}' >"$TMP/w.json"
expect "--ppl with a bad id" 2 "windows\[0\]\[3\]" "$run" -m "$m" --ppl "$TMP/w.json"

# ---- pipes and signals ----
start=$SECONDS
text -n -1 | head -c 1 >/dev/null
check "a closed pipe ends the process" test $((SECONDS - start)) -le 30
rc=0
text -n 24 >/dev/full 2>"$TMP/e" || rc=$?
equal "a full disk is exit code 2" "2 1" "$rc $(grep -c '^error: stdout' "$TMP/e")"
for tool in run-model convert-hf inspect-model bench-model; do
    for option in --help --version; do
        rc=0
        "$BUILD/bin/$tool" $option >/dev/full 2>"$TMP/e" || rc=$?
        equal "$tool $option to a full disk" "2 1" "$rc $(grep -c '^error: stdout' "$TMP/e")"
    done
done

# ^C while the prompt is awaited on stdin, then in the middle of a generation. SIGINT is ignored in background jobs of a
# script, so the process is started through env with the default.
interrupt() { # NAME ARGS...
    local name=$1 rc=0
    shift
    env --default-signal=INT "$@" >"$TMP/o" 2>"$TMP/e" <"$TMP/hold" &
    local pid=$!
    sleep 0.7
    kill -INT $pid
    wait $pid || rc=$?
    equal "$name" 130 $rc
}
rm -f "$TMP/hold"
mkfifo "$TMP/hold"
sleep 30 >"$TMP/hold" &
holder=$!
interrupt "^C while stdin is awaited" "$run" -m "$m" -p -
kill $holder 2>/dev/null
wait $holder 2>/dev/null
finish
