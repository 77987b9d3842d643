#!/usr/bin/env bash
# tokenizers.sh - speed of text to ids over that of the Python package tokenizers, one thread each, alternating in one run.
#
#   tests/bench/tokenizers.sh [--repeat N] [--mb X] [--only NAME] [tokenizer.json...]
#
# Without files: those of the shared data (byte-level BPE, SentencePiece BPE), and a Unigram, a WordPiece, a byte-level and a
# SentencePiece BPE trained on the spot. The text is 1 MB of prose, code and many scripts; then one word of 1 MB and of a
# quarter of that, whose times must be about 4 to 1. Ids that differ end the run. Prints a table; times are CPU times of the
# process, and the ratio is the other's best time over ours. --only: tokenizers with NAME in their name.
# PYTHON names a python3 that has tokenizers; without one: "skip: ...". BUILD: where libtessera.so and convert-hf are.
set -euo pipefail
export LC_ALL=C.UTF-8 RAYON_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${BUILD:-$root/build} python=${PYTHON:-python3}
if ! "$python" -c 'import tokenizers' 2>/dev/null; then
    echo "skip: $python has no tokenizers (pip install tokenizers, or name another python3 in PYTHON)"
    exit 0
fi
[ -e "$build/libtessera.so" ] && [ -x "$build/bin/convert-hf" ] || {
    echo "error: $build/libtessera.so or convert-hf is missing; run make" >&2
    exit 1
}
shared=
for d in "${TESS_SHARED:-/nonexistent}" "$root/../shared" "$root/../../shared"; do
    [ -d "$d/tokenizers" ] && shared=$(cd "$d" && pwd) && break
done
exec "$python" "$here/tok_peer.py" --build "$build" --root "$root" ${shared:+--shared "$shared"} "$@"
