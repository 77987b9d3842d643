#!/usr/bin/env bash
# make install into a folder of its own, then a program built from the installed files alone, shared and static; uninstall.
. "$(dirname "$0")/lib.sh"
P=$TMP/prefix
check "make install" make -C "$ROOT" BUILD="$BUILD" PREFIX="$P" install
for f in bin/run-model bin/convert-hf bin/inspect-model include/tessera.h lib/libtessera.a lib/libtessera.so lib/libtessera.so.0 lib/pkgconfig/tessera.pc share/man/man1/run-model.1; do
    check "installed: $f" test -e "$P/$f"
done
# What pkg-config would print, read from the file itself where there is no pkg-config.
pc() {
    if command -v pkg-config >/dev/null; then PKG_CONFIG_PATH=$P/lib/pkgconfig pkg-config "$@" tessera; else
        case $* in *--cflags*) echo "-I$P/include" ;; esac
        case $* in *--libs*) echo "-L$P/lib -ltessera" ;; esac
        case $* in *--static*) sed -n 's/^Libs.private: //p' "$P/lib/pkgconfig/tessera.pc" ;; esac
    fi
}
san=
grep -q fsanitize "$BUILD/flags" && san=$(grep -o -- '-fsanitize=[^ ]*' "$BUILD/flags" | head -n 1)
cp "$ROOT"/examples/*.c "$TMP"
# shellcheck disable=SC2046
for e in simple batch; do
    check "$e.c builds, shared" ${CC:-cc} -std=c11 -Wall -Wextra -Werror $san "$TMP/$e.c" $(pc --cflags --libs) -o "$TMP/$e"
done
# shellcheck disable=SC2046
check "simple.c builds, static" ${CC:-cc} -std=c11 $san "$TMP/simple.c" $(pc --cflags) "$P/lib/libtessera.a" $(pc --static --libs | sed 's/-ltessera//') -o "$TMP/simple-static"
check "SONAME" sh -c "ldd '$TMP/simple' 2>/dev/null | grep -q 'libtessera.so.0 ' || readelf -d '$TMP/simple' | grep -q 'libtessera.so.0'"

export LD_LIBRARY_PATH=$P/lib
m=$TMP/m.tess
check "installed convert-hf" "$P/bin/convert-hf" "$ROOT/tests/data/llama-gqa" -o "$m"
want=$("$P/bin/run-model" -m "$m" --raw -p "abc" -n 64 --temp 0 </dev/null)
equal "simple, shared" "$want" "$("$TMP/simple" "$m" abc)"
equal "simple, static" "$want" "$("$TMP/simple-static" "$m" abc)"
one=$(printf 'abc\n' | "$TMP/batch" "$m")
equal "batch mates change nothing" "$one" "$(printf 'abc\nhello\nx\n' | "$TMP/batch" "$m" | sed -n 1p)"
check "make uninstall" make -C "$ROOT" BUILD="$BUILD" PREFIX="$P" uninstall
equal "uninstall leaves no file" "" "$(find "$P" -type f -o -type l)"
finish
