#!/bin/sh
# Draws Weft's rates over PyTorch's as bars, by gnuplot: tests/bench/bars.sh CSV PICTURE.svg. The CSV is what bench_all.sh
# writes, which calls this at its end; docs/speed.svg is drawn from docs/speed.csv, which has the medians of the EPYC table in
# docs/performance.md (23 November 2026). A model's bars are f32 and bf16: Weft's
# median over that of PyTorch's fastest form on the same machine, at the same level of instructions. It measures nothing.
set -eu
stop() {
    echo "bars: $*" >&2
    exit 1
}
[ $# -eq 2 ] || stop "$# arguments: should be a CSV file of bench_all.sh and a picture"
[ -r "$1" ] || stop "$1: cannot be read"
machines=$(awk -F, 'NR > 1 { print $1 ", " $2 }' "$1" | sort -u)
[ -n "$machines" ] || stop "$1: no row below the head"
[ "$(echo "$machines" | wc -l)" -eq 1 ] || stop "$1: rows of several machines or levels: should be of one: $(echo "$machines" | paste -sd ";")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Lines "model f32 bf16"; a ratio that was not measured is "-". A later row of the same model replaces an earlier one.
awk -F, '
    NR == 1 { next }
    !($4 in seen) { seen[$4] = 1; order[++n] = $4 }
    $7 == "weft" && ($4 $5) in ours { delete best[$4 $5] }
    $7 == "weft" { ours[$4 $5] = $8 }
    $7 == "captured" { if ($8 > ours[$4 $5]) ours[$4 $5] = $8; next }
    $7 != "weft" && $8 > best[$4 $5] { best[$4 $5] = $8 }
    function ratio(key) { return ours[key] > 0 && best[key] > 0 ? sprintf("%.2f", ours[key] / best[key]) : "-" }
    BEGIN {
        split("dcgan128 DCGAN,128 dcgan512 DCGAN,512 vgg16 VGG-16 resnet18 ResNet-18 resnet50 ResNet-50 convnext_t ConvNeXt-T " \
              "convnext_l ConvNeXt-L swin_t Swin-T swin_b Swin-B vit_s ViT-S gpt GPT lstm LSTM " \
              "unet2 U-Net,2-D unet3 U-Net,3-D mlp MNIST,linear cnn MNIST,conv basicnet BasicNet", word, " ")
        for (i = 1; i in word; i += 2) { gsub(",", " ", word[i + 1]); name[word[i]] = word[i + 1] }
    }
    END {
        for (i = 1; i <= n; i++) {
            m = order[i]
            printf "\"%s\" %s %s\n", m in name ? name[m] : m, ratio(m "f32"), ratio(m "bf16")
        }
    }' "$1" >"$work/ratios"
grep -q ' [0-9]*[.][0-9]' "$work/ratios" || stop "$1: no model has a row of Weft and one of PyTorch"

machine=$(echo "$machines" | tr -d "'\"\\\\{}_^@&")
{
    cat <<PLOT
set terminal svg size 1000,320 font 'sans-serif,12' background 'white'
set output '$work/picture.svg'
set title "Training steps: samples per second over PyTorch's fastest form\\n{/*0.8 $machine}"
PLOT
    cat <<'PLOT'
set style data histograms
set style histogram cluster gap 1
set style fill solid border -1
set boxwidth 0.9
set yrange [0:*]
set offsets 0, 0, 0.4, 0
set ytics nomirror
set xtics nomirror scale 0 font ',10'
set grid ytics
set key top left horizontal
set arrow from graph 0, first 1 to graph 1, first 1 nohead lw 2 lc rgb '#888888' front
set label 'PyTorch' at graph 1.005, first 1 left font ',10' textcolor rgb '#666666'
set rmargin 9
set datafile missing '-'
PLOT
    echo "ratios = '$work/ratios'"
    plot='' labels=''
    for column in 2 3; do # one without a number is left out: gnuplot complains of it
        cut -d'"' -f3 "$work/ratios" | cut -d' ' -f$column | grep -q '[0-9]' || continue
        [ $column = 2 ] && title=f32 colour=2b6ca3 away=-0.17 || { title=bf16 colour=e0a030 away=0.17; }
        plot="$plot, ratios using $column:xtic(1) title '$title' lc rgb '#$colour'"
        labels="$labels, ratios using (\$0 + $away):$column:$column with labels font ',9' offset 0,0.5 notitle"
    done
    [ "$plot" != "${plot%bf16*}" ] && [ "$plot" != "${plot%f32*}" ] || labels=$(echo "$labels" | sed 's/ + -*0.17//')
    echo "plot ${plot#, }$labels"
} >"$work/script"
gnuplot "$work/script"
mv "$work/picture.svg" "$2"
