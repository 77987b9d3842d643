#!/usr/bin/env bash
# Exported names: only tess_* leave libtessera.a and libtessera.so. Forbidden calls: the library never ends the process,
# prints, reads the environment, installs signal handlers or keeps writable data.
. "$(dirname "$0")/lib.sh"
NM=${NM:-nm}
if [ ! -f "$BUILD/libtessera.a" ]; then
    skip "libtessera.a is not built"
    finish
fi
# Sanitizers add symbols of their own.
strip_san() { grep -vE '^(__asan|__ubsan|__tsan|__odr_asan|_ZN|asan\.|__sanitizer|\.Lasan)'; }

exported=$($NM -g --defined-only "$BUILD/libtessera.a" | awk 'NF == 3 {print $3}' | strip_san | grep -v '^tess_')
equal "libtessera.a exports tess_* only" "" "$exported"
exported=$($NM -D --defined-only "$BUILD/libtessera.so" | awk '{print $NF}' | strip_san | grep -v '^tess_')
equal "libtessera.so exports tess_* only" "" "$exported"

declared=$(tr '\n' ' ' <"$ROOT/lib/tessera.h" | sed 's@/\*[^*]*\*\+\([^/*][^*]*\*\+\)*/@@g' | grep -oE 'TESS_API[^;(]*[ *](tess_[a-z_0-9]+)\(' | grep -oE 'tess_[a-z_0-9]+\($' | tr -d '(' | sort -u)
defined=$($NM -D --defined-only "$BUILD/libtessera.so" | awk '{print $NF}' | grep '^tess_' | sort -u)
equal "every declared function is there, and no other" "$declared" "$defined"

forbidden='^(exit|_exit|_Exit|quick_exit|abort|__assert_fail|printf|__printf_chk|puts|putchar|vprintf|__vprintf_chk|perror|getenv|secure_getenv|setenv|signal|sigaction|atexit|raise|stdout|stderr|setlocale|strtok|rand|srand)$'
# What nvcc writes beside the kernels: a handle for each object, registered at start and given back by atexit, and a cache in each
# launch stub. They hold nothing of ours.
cuda=0 nvcc_data='^$'
if $NM "$BUILD/libtessera.a" | grep -q '__cudaFatCubinHandle'; then cuda=1 nvcc_data='__cudaFatCubinHandle|_device_stub_'; fi
called=$($NM -u "$BUILD/libtessera.a" | awk 'NF {print $NF}' | grep -E "$forbidden" || true)
[ $cuda = 1 ] && called=$(printf '%s' "$called" | grep -v '^atexit$' || true)
equal "no process-wide calls" "" "$called"

# Constant tables with pointers lie in .data.rel.ro, which the loader makes read-only.
writable=$($NM -f sysv "$BUILD/libtessera.a" | awk -F'|' '$7 ~ /^ *\.(data|bss)/ && $7 !~ /rel\.ro/ {print $1}' | grep -vE 'asan|ubsan|__sanitizer|\.L|__odr|tsan|^\.(data|bss)' | grep -vE "$nvcc_data" || true)
equal "no writable global data" "" "$writable"

for language in c c++; do
    printf '#include "tessera.h"\nint main(void) { return tess_version_number() == TESS_VERSION_NUMBER ? 0 : 1; }\n' >"$TMP/h.$language"
    flags=-std=c11
    [ "$language" = c++ ] && flags=-std=c++11
    if [ "$language" = c++ ] && ! command -v c++ >/dev/null; then skip "no C++ compiler"; continue; fi
    check "header compiles as $language" "${CC:-cc}" -x "$language" $flags -Wall -Wextra -Wpedantic -Werror -I"$ROOT/lib" -fsyntax-only "$TMP/h.$language"
done
finish
