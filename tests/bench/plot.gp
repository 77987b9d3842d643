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
# Column c in the decode rows of kind i; other rows become NaN, which breaks no line.
set datafile missing NaN
y(i, c) = (strcol(kind) eq word(kinds, i) && strcol("test") eq "decode") ? column(c) : NaN
plot for [i = 1:words(kinds)] csv using (y(i, "depth")):(y(i, "tokens_per_s")) \
         with linespoints lc i pt 7 title word(kinds, i), \
     for [i = 1:words(kinds)] csv using (y(i, "depth")):(y(i, "tokens_per_s")):(y(i, "min")):(y(i, "max")) \
         with yerrorbars lc i pt 7 notitle, \
     for [i = 1:(peer ? words(kinds) : 0)] csv using (y(i, "depth")):(y(i, "peer_tokens_per_s")) \
         with linespoints lc i pt 6 dt 2 title word(kinds, i) . ", peer"
