# Decode speed against depth, from the CSV of compare.sh or of bench-model --csv.
#   gnuplot -e "csv='build/bench/compare.csv'; out='build/bench/decode.svg'" tests/bench/plot.gp
# Medians are drawn, with lowest and highest as bars; the peer, when the file has one, with broken lines.
set datafile separator ","
if (!exists("out")) out = "decode.svg"
set terminal svg size 900,560 font "sans,13" background "white"
set output out
set title "decode speed behind a filled KV cache"
set xlabel "depth (tokens)"
set ylabel "tokens per second"
set yrange [0:*]
set key outside right
set grid
# The kinds of weights in the file, in order of appearance; column "weights" is compare.sh's, "type"
# bench-model's.
names = system("head -n 1 " . csv)
kind = strstrt(names, "weights,") == 1 ? "weights" : "type"
kinds = system("awk -F, -v k=" . kind . " 'NR == 1 { for (i = 1; i <= NF; i++) c[$i] = i; next } " \
    . "$c[\"test\"] == \"decode\" && !seen[$c[k]]++ { print $c[k] }' " . csv)
peer = strstrt(names, "peer_tokens_per_s") > 0
# Column c in the decode rows of kind t; other rows become NaN, which breaks no line.
set datafile missing NaN
y(t, c) = (strcol(kind) eq t && strcol("test") eq "decode") ? column(c) : NaN
if (peer) {
    plot for [t in kinds] csv using (y(t, "depth")):(y(t, "tokens_per_s")):(y(t, "min")):(y(t, "max")) \
             with yerrorlines pt 7 title t, \
         for [t in kinds] csv using (y(t, "depth")):(y(t, "peer_tokens_per_s")):(y(t, "peer_min")):(y(t, "peer_max")) \
             with yerrorlines pt 6 dt 2 title t . ", peer"
} else {
    plot for [t in kinds] csv using (y(t, "depth")):(y(t, "tokens_per_s")):(y(t, "min")):(y(t, "max")) \
             with yerrorlines pt 7 title t
}
