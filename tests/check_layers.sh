#!/usr/bin/env bash
# Enforces the layers: lib/base <- formats, kernels <- lib <- lib/api.c <- tools, examples, by the include lines. A file of
# a folder may include headers of the folders that its row names, by plain file name, so names are unique in the tree.
. "$(dirname "$0")/lib.sh"
cd "$ROOT" || exit 1

# Prints every "#include "x.h"" of a file whose header lies in none of the allowed folders.
violations() { # FILES... -- FOLDERS...
    local files=() inc header f
    while [ "$1" != -- ]; do files+=("$1") && shift; done
    shift
    for f in "${files[@]}"; do
        while read -r inc; do
            header=$(basename "$inc") found=
            for dir in "$@"; do [ -f "$dir/$header" ] && found=1; done
            [ -n "$found" ] || echo "$f includes $inc"
        done < <(sed -nE 's/^ *# *include +"([^"]+)".*/\1/p' "$f")
    done
}
layer() { # NAME, FILES -- FOLDERS
    local name=$1 out
    shift
    out=$(violations "$@")
    if [ -z "$out" ]; then pass "layer $name"; else fail "layer $name"; echo "$out"; fi
}
only_in() { # NAME REGEX ALLOWED-REGEX: system headers that few files may include
    local out
    out=$(grep -rlE --include='*.[ch]' --include='*.cu' --include='*.cuh' "^ *# *include +<($2)>" lib formats kernels tools examples tests 2>/dev/null | grep -vE "$3")
    if [ -z "$out" ]; then pass "only $1"; else fail "only $1"; echo "$out"; fi
}
# The only header of lib/ that lower layers see is the public one: it is linked into a folder of its own.
mkdir -p "$TMP/public" && cp lib/tessera.h "$TMP/public"

shopt -s nullglob
layer base lib/base/*.[ch] -- lib/base "$TMP/public"
layer formats formats/*.[ch] -- formats lib/base "$TMP/public"
layer kernels kernels/*.[ch] kernels/cpu/*.[ch] kernels/cuda/* -- kernels kernels/cpu kernels/cuda lib/base "$TMP/public"
layer lib lib/*.[ch] -- lib lib/base formats kernels
public=(tools/run-model.c tools/run*.[ch] tools/bench*.[ch] tools/serve*.[ch] tools/cli.[ch])
for f in "${public[@]}"; do [ -f "$f" ] && present+=("$f"); done
mkdir -p "$TMP/tool" && cp tools/cli.h tools/run*.h tools/bench*.h tools/serve*.h "$TMP/tool" 2>/dev/null
layer "run-model, bench-model and serve-model: public interface only" "${present[@]}" -- "$TMP/public" "$TMP/tool"
layer examples examples/*.c -- "$TMP/public"

only_in "the container and inspect-model know zstd" 'zstd[a-z_]*\.h' '^(formats/(container|ct_)|tools/(inspect|convert)|tests/gguf_delta)'
only_in "hash.c knows xxHash" 'xxh[a-z0-9_]*\.h' '^lib/base/hash\.c'
only_in "os_*.c knows sys/mman.h" 'sys/mman\.h' '^(lib/base/os_|tests/)'
only_in "kernels/cuda knows CUDA" 'cuda[a-z_]*\.h|cublas[a-zA-Z_0-9]*\.h' '^(kernels/cuda/|tests/cuemu/)'

names=$(find lib formats kernels tools -name '*.[ch]' -printf '%f\n' | sort | uniq -d)
equal "file names are unique" "" "$names"
finish
