# sass_count.awk - counts instructions in what `cuobjdump --dump-sass` prints; for check_sass.sh.
#
# A line for each kernel: its name, which products are counted (MMA, wgmma too, if it has any, or IDP, or FFMA), and
#   local                          accesses of local memory in the whole kernel
#   main all fma add mul ldsm      products, instructions, and some kinds of them, of the run with most products; a run is a
#                                  stretch of code that nothing jumps into or out of
#   i2f c128 c64                   conversions between integer and float, and copies of 128 and 64 bits to shared memory, of the
#                                  loop around that run: the smallest that has such copies (-1: there is none)
function hex(s,   v, i) {
    v = 0
    for (i = 1; i <= length(s); i++) v = v * 16 + index("0123456789abcdef", substr(s, i, 1)) - 1
    return v
}
function among(lo, hi, what,   c, i) {
    c = 0
    for (i = lo; i <= hi; i++) if (op[i] ~ what) c++
    return c
}
function report(   i, kind, c, most, from, lo, hi, first, last) {
    if (!n) return
    kind = among(1, n, "^([HI]|HG)MMA") ? "MMA" : among(1, n, "^IDP") ? "IDP" : "FFMA"
    most = -1; from = 1
    for (i = 1; i <= n; i++) {
        if (!(op[i] ~ /^(BRA|BRX|EXIT|RET|CALL)/ || at[i + 1] in target || i == n)) continue
        c = among(from, i, kind)
        if (c > most) { most = c; lo = from; hi = i }
        from = i + 1
    }
    first = 1; last = 0
    for (i = hi; i <= n; i++)
        if ((i in back) && back[i] <= at[lo] && among(number[back[i]], i, "^LDGSTS") && (!last || i - number[back[i]] < last - first)) {
            first = number[back[i]]; last = i
        }
    printf "%s %s local=%d main=%d all=%d fma=%d add=%d mul=%d ldsm=%d", name, kind, among(1, n, "^(LDL|STL)"), most, hi - lo + 1, \
        among(lo, hi, "^FFMA"), among(lo, hi, "^FADD"), among(lo, hi, "^FMUL"), among(lo, hi, "^LDSM")
    if (!last) print " i2f=-1 c128=-1 c64=-1"
    else printf " i2f=%d c128=%d c64=%d\n", among(first, last, "^(I2F|F2I)"), among(first, last, "^LDGSTS.*[.]128"), \
        among(first, last, "^LDGSTS.*[.]64")
}
/Function : / {
    report()
    name = $3; n = 0
    split("", target); split("", back); split("", number); split("", at); split("", op)
}
match($0, /^[ \t]+\/\*[0-9a-f]+\*\/ /) {
    text = substr($0, RSTART + RLENGTH); sub(/;.*/, "", text); sub(/^ *(@!?U?P[0-9T]+ +)?/, "", text)
    address = $1; gsub(/[^0-9a-f]/, "", address); address = hex(address)
    at[++n] = address; number[address] = n
    op[n] = text; sub(/ .*/, "", op[n])
    if (op[n] == "BRA" && match(text, /0x[0-9a-f]+ *$/)) {
        to = substr(text, RSTART + 2); gsub(/ /, "", to); to = hex(to)
        target[to] = 1
        if (to < address) back[n] = to
    }
}
END { report() }
