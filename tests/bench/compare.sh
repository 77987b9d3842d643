#!/usr/bin/env bash
# compare.sh - Tessera's speed over llama.cpp's at equal bits per weight, in one run, as a table of ratios.
#
#   tests/bench/compare.sh [SOURCE.gguf] [--types "bf16 q8 q4 q4_0"] [--peer-kv TYPES] [--out DIR] [bench-model options]
#
# Every repetition of Tessera is followed by the same of llama.cpp (llama-cpp-python, flash attention on), so
# that both see the same machine; see bench-model(1) --peer. SOURCE: any GGUF that both read
# (SmolLM2-135M-Instruct, which is fetched). llama.cpp writes it in each type, convert-hf reads that file, so
# both run the same weights: bf16; q8 = Q8_0; q4 = Q4_1; q4_0 = Q4_0. A type that convert-hf does not know is
# skipped. bench-model options: -p 512 -n 64 -d 0,4096 -t 2 -r 3 unless given. --peer-kv: KV types that
# llama.cpp tries, the fastest counts ("same": the one of Tessera).
#
# PYTHON names a python3 that has llama_cpp; without it a virtual environment is made in DIR (llama.cpp builds
# for a quarter of an hour). DIR (build/bench) also gets compare.csv and, when gnuplot is there, decode.svg.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${BUILD:-$root/build}
bin=$build/bin
out=$build/bench types="bf16 q8 q4 q4_0" peer_kv=same source=
options=(-p 512 -n 64 -d 0,4096 -t 2 -r 3)
die() {
    echo "error: $*" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
    --types | --peer-kv | --out | -*)
        [ $# -gt 1 ] || die "$1 needs a value"
        case $1 in
        --types) types=$2 ;;
        --peer-kv) peer_kv=$2 ;;
        --out) out=$2 ;;
        *) options+=("$1" "$2") ;; # the last one counts
        esac
        shift 2
        ;;
    *)
        [ -z "$source" ] || die "unexpected argument $1"
        source=$1
        shift
        ;;
    esac
done
[ -x "$bin/bench-model" ] && [ -x "$bin/convert-hf" ] || die "$bin/bench-model or convert-hf is missing; run make"
mkdir -p "$out"
if [ -z "$source" ]; then
    "$root/tools/fetch-smollm2.sh" "$build/smollm2"
    source=$build/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
fi
[ -f "$source" ] || die "$source: no such file"
python=${PYTHON:-$out/venv/bin/python}
if ! "$python" -c 'import llama_cpp' 2>/dev/null; then
    [ -z "${PYTHON:-}" ] || die "$PYTHON has no llama_cpp; pip install llama-cpp-python"
    echo "building llama-cpp-python in $out/venv" >&2
    python3 -m venv "$out/venv"
    "$python" -m pip install -q llama-cpp-python >"$out/pip.log" 2>&1 || die "pip install llama-cpp-python failed, see $out/pip.log"
fi

name=$(basename "$source" .gguf)
csv=$out/compare.csv
rm -f "$csv"
for type in $types; do
    case $type in
    bf16 | f16 | f32) ours=$type theirs=$type ;;
    q8) ours=q8 theirs=q8_0 ;;
    q4) ours=q4 theirs=q4_1 ;;
    q4_0) ours=q4 theirs=q4_0 ;;
    *) die "type $type is none of f32, f16, bf16, q8, q4, q4_0" ;;
    esac
    gguf=$out/$name.$theirs.gguf tess=$out/$name.$type.tess
    [ -f "$gguf" ] || "$python" "$here/llama_peer.py" "$source" --quantize "$theirs" "$gguf" >"$out/quantize.log" 2>&1 ||
        die "llama.cpp does not write $gguf, see $out/quantize.log"
    if ! "$bin/convert-hf" "$gguf" -o "$tess" --type "$ours" --force >"$out/convert.log" 2>&1; then
        echo "skip: $type: $(grep -m 1 '^error' "$out/convert.log" || tail -n 1 "$out/convert.log")" >&2
        continue
    fi
    echo "measuring $type ($(stat -c %s "$tess") bytes) against $theirs ($(stat -c %s "$gguf") bytes)" >&2
    "$bin/bench-model" -m "$tess" "${options[@]}" --csv --peer "exec '$python' '$here/llama_peer.py' '$gguf' --kv $peer_kv" |
        awk -v type="$type" -v first="$([ -s "$csv" ] && echo 0 || echo 1)" \
            'NR == 1 { if (first) print "weights," $0; next } { print type "," $0; fflush() }' >>"$csv"
done
[ -s "$csv" ] || die "nothing was measured"

awk -F, '
    NR == 1 {
        for (i = 1; i <= NF; i++) col[$i] = i
        printf "%-7s %-6s %6s %6s %3s %4s %10s %10s %7s %7s %7s %6s %5s\n", "weights", "test", "depth", "tokens", "thr", "kv",
               "tokens/s", "llama.cpp", "ratio", "min", "max", "% read", "load"
        next
    }
    {
        printf "%-7s %-6s %6d %6d %3d %4s %10.2f %10.2f %7.2f %7.2f %7.2f %6.1f %5.2f\n", $1, $(col["test"]), $(col["depth"]),
               $(col["tokens"]), $(col["threads"]), $(col["kv"]), $(col["tokens_per_s"]), $(col["peer_tokens_per_s"]),
               $(col["ratio"]), $(col["ratio_min"]), $(col["ratio_max"]), 100 * $(col["fraction_of_read"]), $(col["load"])
    }' "$csv"
grep -m 1 '^model name' /proc/cpuinfo | sed 's/.*: /machine: /'
if command -v gnuplot >/dev/null && awk -F, 'NR > 1 && $2 == "decode" { n++ } END { exit !(n > 1) }' "$csv"; then
    gnuplot -e "csv='$csv'; out='$out/decode.svg'" "$here/plot.gp" && echo "plot: $out/decode.svg"
fi
