#!/usr/bin/env bash
# What --help and the man pages say is the same: every option that a command lists stands as a tag of its page, and every tag
# of the page is an option that the command lists.
. "$(dirname "$0")/lib.sh"

# Options of the left column of --help: lines that begin with two spaces and a dash, up to the text behind two spaces.
help_options() { sed -nE 's/^  (-.*)$/\1/p' | sed -E 's/  .*//' | options; }
# The line behind each .TP of a page, without roff's fonts and escapes.
page_options() { awk '/^\.SH/ { on = $0 ~ /OPTIONS/ } tag && on { print } { tag = $0 == ".TP" }' | sed -e 's/\\f[A-Z]//g' -e 's/\\-/-/g' -e 's/"//g' | options; }
options() { grep -oE '(^|[ ,])--?[A-Za-z][-A-Za-z0-9]*' | tr -d ' ,' | sort -u; }

for tool in convert-hf run-model inspect-model bench-model; do
    page=$ROOT/docs/$tool.1
    "$BIN/$tool" --help | help_options >"$TMP/help"
    page_options <"$page" >"$TMP/page"
    check "$tool --help lists options" test "$(wc -l <"$TMP/help")" -ge 10
    equal "$tool.1: every option of --help, and no other" "$(cat "$TMP/help")" "$(cat "$TMP/page")"
done
check "the pages name this version" sh -c "! grep -L 'Tessera $(sed -n 's/^VERSION *= *//p' "$ROOT/Makefile")' '$ROOT'/docs/*.1 | grep ."
finish
