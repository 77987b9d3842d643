#!/usr/bin/env bash
# bench-model: options and exit codes, what the JSON holds, peers of every kind. No speed is asked for.
. "$(dirname "$0")/lib.sh"
bench=$BIN/bench-model
if [ ! -x "$bench" ] || [ ! -x "$BIN/convert-hf" ]; then
    fail "bench-model and convert-hf are not built"
    finish
fi
m=$TMP/m.tess
"$BIN/convert-hf" "$ROOT/tests/data/llama-gqa" -o "$m" >"$TMP/convert.log" 2>&1 || { fail "conversion"; cat "$TMP/convert.log"; finish; }
value() { grep -o "\"$1\": [^,]*" "$TMP/expect.out" | head -n 1 | cut -d' ' -f2; } # of the JSON that expect left
count() { grep -c "$1" "$TMP/expect.out"; }
quick=("$bench" -m "$m" -p 0 -n 2 -r 1)

# ---- usage ----
expect "no arguments" 1 "no model" "$bench"
expect "unknown option" 1 "unknown option --foo" "$bench" -m "$m" --foo
for v in -1 x 1,x 1,, 99999999 ""; do expect "-p '$v'" 1 "-p:" "$bench" -m "$m" -p "$v"; done
for v in 0 -1 1,0 9999 x; do expect "-t $v" 1 "-t:" "$bench" -m "$m" -t "$v"; done
for v in 0 1001 x; do expect "-r $v" 1 "-r:" "$bench" -m "$m" -r "$v"; done
expect "--kv q3" 1 "--kv" "$bench" -m "$m" --kv f16,q3
expect "--page 5" 1 "--page" "$bench" -m "$m" --page 5
expect "--tp 0" 1 "--tp" "$bench" -m "$m" --tp 0
expect "nothing to measure" 1 "nothing to measure" "$bench" -m "$m" -p 0 -n 0
expect "more than the context" 1 "context of" "$bench" -m "$m" -d 1000000
equal "more than the context: no table begins" "" "$(cat "$TMP/expect.out")"
expect "empty --peer" 1 "--peer" "$bench" -m "$m" --peer ""
expect "help" 0 "" "$bench" --help
expect "version" 0 "" "$bench" --version
expect "missing model" 2 "none.tess" "$bench" -m "$TMP/none.tess"
expect "model is text" 2 "lib.sh" "$bench" "$ROOT/tests/lib.sh"

# ---- results ----
expect "JSON" 0 "" "$bench" "$m" -p 4,8 -n 3 -d 0,5 -r 2 -t 1,2 --kv f32,f16 --json
equal "every combination" 24 "$(count '"tokens_per_s"')"
equal "prompts" 16 "$(count '"test": "prompt"')"
equal "depths" 12 "$(count '"depth": 5')"
equal "two threads" 12 "$(count '"threads": 2')"
equal "KV f32" 12 "$(count '"kv": "f32"')"
equal "one machine" 1 "$(count '"machine": {')"
ordered() { # min <= median <= max, all > 0, in every result
    tr -d ' ,' <"$TMP/expect.out" | awk -F: '
        /"tokens_per_s"/ { v = $2 } /"min"/ { lo = $2 } /"max"/ { n++; if (!(lo > 0 && lo <= v && v <= $2)) bad = 1 }
        END { exit !(n == 24 && !bad) }'
}
check "min, median, max" ordered
expect "prompts left out" 0 "" "$bench" "$m" -p 0 -n 2 -r 1 --json
equal "no prompt" 0 "$(count '"test": "prompt"')"
expect "decode left out" 0 "" "$bench" "$m" -p 4 -n 0 -r 1 --json
equal "no decode" 0 "$(count '"test": "decode"')"
# The tiny model: every weight is read once per token, and half a token's K and V on average with one decode
# step.
weights=$(value weight_bytes)
expect "bytes per token" 0 "" "$bench" "$m" -p 0 -n 1 -r 1 --kv f32 --json
bytes=$(value bytes_per_token)
check "weights $weights, read per token $bytes" awk "BEGIN { exit !($bytes > 0 && $bytes < $weights * 1.05) }"
expect "CSV" 0 "" "$bench" "$m" -p 4 -n 2 -r 1 --csv
equal "CSV: lines" 3 "$(wc -l <"$TMP/expect.out")"
equal "CSV: as many values as names" 1 "$(awk -F, '{ print NF }' "$TMP/expect.out" | sort -u | wc -l)"
expect "ranks" 0 "" "$bench" "$m" -p 8 -n 2 -r 1 --tp 2 -ub 3 --json
equal "ranks are told" 2 "$(value ranks)"
expect "full disk" 2 "stdout" bash -c '"$@" >/dev/full' full "${quick[@]}"

# ---- peers ----
expect "peer: a number" 0 "" "${quick[@]}" --json -r 2 --peer "echo 0.001"
check "peer: ratio above 1" awk "BEGIN { exit !($(value ratio) > 1) }"
expect "peer: JSON over lines, environment" 0 "" "${quick[@]}" --json --peer 'printf "{\n\"tokens_per_s\": %s\n}\n" $BENCH_TOKENS'
equal "peer: its number" 2 "$(value peer_tokens_per_s)"
expect "peer: bench-model" 0 "" "${quick[@]}" --json --peer "'$bench' '$m' -p 0 -n 2 -r 1 --json"
cat >"$TMP/peer.sh" <<'EOF'
echo started >>"$1"
while read -r line; do
    echo "$line" >>"$1"
    echo 7
done
EOF
expect "peer: one that stays" 0 "" "${quick[@]}" -r 3 --peer "bash '$TMP/peer.sh' '$TMP/asked'"
equal "peer: was started once and asked three times" "started 3" "$(head -n 1 "$TMP/asked") $(grep -c '"decode","tokens":2,"depth":0' "$TMP/asked")"
expect "peer: ends without an answer" 2 "exit status 3" "${quick[@]}" --peer "exit 3"
expect "peer: killed" 2 "signal 9" "${quick[@]}" --peer 'kill -9 $$'
expect "peer: no number" 2 "neither a number" "${quick[@]}" --peer "echo hello"
expect "peer: zero" 2 "not a speed" "${quick[@]}" --peer "echo 0"
expect "peer: endless" 2 "neither a number" "${quick[@]}" --peer "yes"
expect "peer: no such command" 2 "exit status 127" "${quick[@]}" --peer "/nonexistent/peer"

# ---- ^C ----
interrupted=(timeout -s INT --preserve-status 1 "$bench" "$m")
expect "^C in a run" 130 "" "${interrupted[@]}" -p 0 -n 32 -r 1000
expect "^C while the peer works" 130 "" "${interrupted[@]}" -p 0 -n 2 -r 1 --peer "sleep 30"
finish
