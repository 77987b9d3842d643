#!/usr/bin/env bash
# Counts the instructions of the hot kernels in what nvcc built for sm_90 and compares them with what their work needs: no local
# memory, no conversion between integer and float where K is walked, copies of 128 bits, and in the run with most products (mma,
# dp4a or fma) no more than so many instructions. docs/cuda.md has what follows from these figures.
#
# It needs objects of kernels/cuda (a build with nvcc) and cuobjdump of the PATH, the toolkit, or CUOBJDUMP=.
. "$(dirname "$0")/lib.sh"
cd "$ROOT" || exit 1
tool=${CUOBJDUMP:-$(command -v cuobjdump || echo "${CUDA_HOME:-/usr/local/cuda}/bin/cuobjdump")}
dir=$BUILD/obj/kernels/cuda
[ -f "$dir/linear.o" ] || { skip "instructions of kernels: built without nvcc"; finish; }
[ -x "$tool" ] || { skip "instructions of kernels: no cuobjdump (set CUOBJDUMP)"; finish; }

for o in linear gemm experts attn_mma; do
    [ -f "$dir/$o.o" ] || continue
    "$tool" --dump-sass -arch sm_90 "$dir/$o.o" 2>>"$TMP/errors" | awk -f tests/sass_count.awk
done >"$TMP/counts"
[ ! -s "$TMP/counts" ] || "$tool" --dump-sass "$dir/gemm_wide.o" 2>>"$TMP/errors" | awk -f tests/sass_count.awk >>"$TMP/counts" # sm_90a
why=$(grep -m 1 . "$TMP/errors") # cuobjdump wants nvdisasm beside it or in the PATH
[ -s "$TMP/counts" ] || { skip "instructions of kernels: ${why:-built without sm_90}"; finish; }

# Prints what is wrong with the kernels whose names contain PATTERN: a run has a multiple of PRODUCTS, at most MOST instructions for
# that many; the loop has COPIES of 128 bits or more and CONVERSIONS or less. No such kernel is wrong too.
rule() { # PATTERN PRODUCTS MOST COPIES [CONVERSIONS]
    awk -v pattern="$1" -v products="$2" -v most="$3" -v copies="$4" -v conversions="${5:-0}" '
        index($1, pattern) {
            found = 1
            for (i = 3; i <= NF; i++) { split($i, v, "="); n[v[1]] = v[2] }
            if (n["main"] == 0 || n["main"] % products || n["all"] * products > most * n["main"]) print "run: " $0
            if (n["c128"] < copies) print "copies: " $0
            if (n["i2f"] < 0 || n["i2f"] > conversions) print "conversions: " $0
        }
        END { if (!found) print "no kernel " pattern }' "$TMP/counts"
}
rules() { # NAME, rules on stdin
    local out
    out=$(while read -r line; do [ -z "$line" ] || rule $line; done)
    if [ -z "$out" ]; then pass "$1"; else
        fail "$1"
        printf '%s\n' "$out"
    fi
}

equal "no kernel has local memory" "" "$(grep -v ' local=0 ' "$TMP/counts")"

# A lane's group of q8: 8 loads of weights, 5 instructions for scales, and for a token 32 dp4a, 5 loads, 8 operations and 2 stores:
# 60, 107, 201 for 1, 2, 4 tokens. q4: 4 loads, 48 operations on codes, 11 for scales and minima, 49 for a token: 112, 161, 259.
# Copies: 16 groups of 17 (10) times 16 bytes by 32 lanes.
rules "dp4a" <<'EOF'
_gemvILj4ELj1E 32 74 8
_gemvILj4ELj2E 64 124 8
_gemvILj4ELj4E 128 221 8
_gemvILj5ELj1E 32 134 5
_gemvILj5ELj2E 64 184 5
_gemvILj5ELj4E 128 296 5
EOF

# An mma of 16 x 8 x 32 leaves 4 sums to a lane: for each a subtraction, a product of scales and an fma (q4: two), 13 instructions in
# all (17). A warp of 64 x 32 shares what it loads of a group among 16 of them, one of 32 x 16 among 4, which has its copies in the
# run too, one of 16 x 8 not at all.
rules "int8 mma" <<'EOF'
mma_shapeILj4ELj4ELj4E 16 268 2
mma_shapeILj4ELj2ELj2E 4 84 1
mma_shapeILj4ELj1ELj1E 4 116 1
mma_shapeILj5ELj4ELj4E 16 362 2
mma_shapeILj5ELj2ELj2E 4 114 1
mma_shapeILj5ELj1ELj1E 4 152 1
EOF

# R rows and T tokens of a lane, a column: R * T fma, a load of weights, R widenings (not of f32), T / 4 loads of x; and 5 % on it.
rules "chains of fma" <<'EOF'
float_shapeILj1ELj1ELj1E 32 76 8
float_shapeILj1ELj1ELj2E 64 118 4
float_shapeILj1ELj1ELj4E 128 202 2
float_shapeILj1ELj2ELj8E 256 320 2
float_shapeILj1ELj4ELj8E 256 294 1
float_shapeILj2ELj1ELj1E 64 219 8
float_shapeILj2ELj1ELj2E 128 303 4
float_shapeILj2ELj1ELj4E 256 471 2
float_shapeILj2ELj2ELj8E 512 706 2
float_shapeILj2ELj4ELj8E 512 656 1
float_shapeILj3ELj1ELj1E 64 219 8
float_shapeILj3ELj1ELj2E 128 303 4
float_shapeILj3ELj1ELj4E 256 471 2
float_shapeILj3ELj2ELj8E 512 706 2
float_shapeILj3ELj4ELj8E 512 656 1
EOF

# A warp of 64 x 64 and 32 columns: 64 mma, 16 loads of four matrices, and a fifth on that for addresses.
# wgmma: two, in a stretch with the barrier and what names their operands; copies of 24 KB and of 28 KB (some warps: one less).
if [ -f "$dir/gemm.o" ]; then
    rules "bf16 mma" <<'EOF'
gemm_mma 64 96 8
gemm_wideILj2E 2 52 6
gemm_wideILj3E 2 52 5
EOF
fi

# Conversions: of the position that a chunk begins with, to its page.
if [ -f "$dir/attn_mma.o" ]; then
    rules "attention" <<'EOF'
attn_tilesILj2ELi64E 8 26 4 4
attn_tilesILj2ELi128E 8 26 4 4
attn_tilesILj6ELi64E 8 80 4 2
attn_tilesILj6ELi128E 8 80 4 2
EOF
fi
finish
