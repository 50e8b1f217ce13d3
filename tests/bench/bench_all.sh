#!/bin/bash
# Training steps of all models beside PyTorch's, one process: tests/bench/bench_all.sh BUILD [MODEL...]. Prints a table,
# draws it as bars in BUILD/bench-all-LEVEL.svg (bars.sh), and adds to BUILD/bench-all.csv: machine, level, versions, model,
# precision, batch, who, median of samples per second, least, most, the most memory in MiB, the seconds that it took to prepare
# steps (of PyTorch: by how much its first step took longer), and "busy" where others used the processors.
# `make bench-all` calls it; it takes an hour, two thirds of it PyTorch's compiler.
#
# Weft's runs alternate with those of PyTorch's forms (eager, channels_last, both compiled), and PyTorch's figure is that of
# its fastest form. Before each run others may take 3 % of the processors for 2 s; else it waits, a minute at most, and the
# row says "busy".
#
#   WEFT_BENCH_ROUNDS (3)   runs of each
#   WEFT_BENCH_FORMS        forms of PyTorch, without the slow ones for example: "eager channels_last"
#   WEFT_BENCH_OURS         forms of Weft: "weft", and "captured", which replays steps (the default where there is a GPU)
#   WEFT_BENCH_THREADS (2)  of either
#   WEFT_BENCH_LEVELS       instructions for both, one after the other: newest (all that the processor has; the default),
#                           avx512 (without products of 16 bits), avx2, sse41
#   WEFT_BENCH_TYPES        "f32 bf16"
#   WEFT_TORCH_PYTHON       the Python that has PyTorch; else python3, else one that is installed into BUILD/torch
set -eu
# name, model, batch, iterations, options
models='dcgan128 dcgan 64 20 --channels 128
dcgan512 dcgan 64 4 --channels 512
vgg16 vgg 64 6
resnet18 resnet18 16 3 --size 224
resnet50 resnet50 8 3 --size 224
convnext_t convnext_t 8 3 --size 224 --width 96
swin_t swin-t 8 3 --size 224
vit_s vit-s 8 3 --size 224
gpt gpt 1 3
lstm lstm 64 3
unet2 unet2 4 3 --size 256 --width 32
unet3 unet3 2 2 --size 64 --width 16
mlp mlp 64 200
cnn cnn 64 200
basicnet basicnet 64 100'
# Measured where they are named.
named='swin_b swin-b 2 2 --size 224
convnext_l convnext-l 2 2 --size 224'
names=$(printf '%s\n' "$models" "$named" | awk '{ printf "%s ", $1 }')
usual=$(echo "$models" | awk '{ printf "%s ", $1 }')
stop() {
    echo "bench_all: $*" >&2
    exit 1
}
build=${1-}
[ -x "$build/tests/bench/bench_step" ] || stop "\"$build\" has no tests/bench/bench_step: bench_all.sh BUILD [MODEL...]"
shift
for name; do
    case " $names" in *" $name "*) ;; *) stop "model $name: should be one of $names" ;; esac
done
here=$(cd "$(dirname "$0")" && pwd)
rounds=${WEFT_BENCH_ROUNDS:-3} threads=${WEFT_BENCH_THREADS:-2}
forms=${WEFT_BENCH_FORMS:-eager channels_last compile compile_channels_last}
levels=${WEFT_BENCH_LEVELS:-newest} types=${WEFT_BENCH_TYPES:-f32 bf16}
ours=weft
[ ! -e /dev/nvidia0 ] || ours="weft captured"
ours=${WEFT_BENCH_OURS:-$ours}
csv=$build/bench-all.csv
[ "$rounds" -ge 1 ] 2>/dev/null || stop "WEFT_BENCH_ROUNDS=$rounds: should be 1 or more"
for level in $levels; do
    case $level in newest | avx512 | avx2 | sse41) ;; *) stop "WEFT_BENCH_LEVELS: $level: should be newest, avx512, avx2 or sse41" ;; esac
done
for type in $types; do
    case $type in f32 | bf16) ;; *) stop "WEFT_BENCH_TYPES: $type: should be f32 or bf16" ;; esac
done
command -v gnuplot >/dev/null || stop "there is no gnuplot, which draws the bars"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/bench/torch.sh
. "$here/torch.sh"
python=$(find_torch)
# shellcheck source=tests/bench/levels.sh
. "$here/levels.sh"
export OMP_NUM_THREADS=$threads

# Processor time in hundredths of a second: busy, all.
clock() {
    awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 + $9, $2 + $3 + $4 + $5 + $6 + $7 + $8 + $9 }' /proc/stat
}

# Waits until others are quiet; sets `busy` where they are not.
quiet() {
    local before after
    for _ in $(seq 30); do
        before=$(clock)
        sleep 2
        after=$(clock)
        if echo "$before $after" | awk '{ exit !($3 - $1 < 0.03 * ($4 - $2)) }'; then
            return
        fi
    done
    busy=busy
}

# Names the newest instructions that this processor has.
newest() {
    local flags
    flags=" $(awk -F': ' '/^flags/ { print $2; exit }' /proc/cpuinfo) "
    case $flags in
    *" amx_bf16 "*) echo AMX ;;
    *" avx512_bf16 "*) echo "avx512 with bf16" ;;
    *" avx512f "*) echo avx512 ;;
    *" avx2 "*) echo avx2 ;;
    *) echo sse41 ;;
    esac
}

# weft FORM MODEL PRECISION BATCH ITERATIONS OPTION...: samples per second, MiB, seconds of preparing
weft() {
    local program=bench_step form=$1 model=$2 precision=$3 batch=$4 iterations=$5
    shift 5
    [ "$form" = weft ] || set -- --captured "$@"
    [ "$model" != dcgan ] || program=bench_dcgan
    [ "$model" = dcgan ] || set -- --model "$model" "$@"
    [ "$precision" = f32 ] || set -- --compute "$precision" "$@"
    "$build/tests/bench/$program" --batch "$batch" --iterations "$iterations" --warmup 3 --memory "$@"
}

# torch FORM MODEL PRECISION BATCH ITERATIONS OPTION...
torch() {
    local form=$1 model=$2 precision=$3 batch=$4 iterations=$5
    shift 5
    "$python" "$here/bench_torch.py" --model "$model" --precision "$precision" --batch "$batch" --iterations "$iterations" \
        --warmup 3 --threads "$threads" --variant "$form" --memory "$@"
}

# Prints, of lines "rate MiB seconds", the median, least and most of the rates, and the most MiB and seconds.
sums() {
    sort -n "$1" 2>/dev/null | awk '{ v[NR] = $1; if ($2 > m) m = $2; if ($3 > s) s = $3 } END { if (NR) print v[int((NR + 1) / 2)], v[1], v[NR], m, s + 0 }'
}

# row LEVEL NAME MODEL BATCH ITERATIONS OPTION...: in each type
row() {
    local level=$1 name=$2 model=$3 batch=$4 iterations=$5 said=$1 precision who line
    shift 5
    [ "$level" != newest ] || said=$(newest)
    : >"$work/rows"
    for precision in $types; do
        rm -f "$work"/*.runs
        busy=
        for _ in $(seq "$rounds"); do
            for form in $ours; do
                quiet
                at "$level" weft "$form" "$model" "$precision" "$batch" "$iterations" "$@" >>"$work/$form.runs"
            done
            [ -n "$python" ] || continue
            for form in $forms; do
                quiet
                at "$level" torch "$form" "$model" "$precision" "$batch" "$iterations" "$@" >>"$work/$form.runs" 2>"$work/why" ||
                    echo "PyTorch $form, $name $precision: $(tail -n 1 "$work/why")" >&2
            done
        done
        for who in $ours $forms; do
            line=$(sums "$work/$who.runs")
            [ -z "$line" ] || echo "$machine,$said,$versions,$name,$precision,$batch,$who,${line// /,},$busy" >>"$work/rows"
        done
    done
    tee -a "$csv" "$work/level-$level" <"$work/rows" >>"$work/table"
}

# The table of what was measured now.
table() {
    awk -F, '
        { key = $4 FS $5 FS $2; if (!(key in seen)) { seen[key] = 1; order[++n] = key } busy[key] = busy[key] != "" ? busy[key] : $13 }
        $7 == "weft" || $7 == "captured" {
            if ($8 > weft[key]) { weft[key] = $8; room[key] = $11; setup[key] = $12 }
            next
        }
        $8 > best[key] { best[key] = $8; form[key] = $7; its[key] = $11; first[key] = $12 }
        END {
            printf "%-10s %-5s %-16s %9s %9s %6s %9s %9s %6s %6s  %s\n", "model", "type", "level", "Weft", "PyTorch", "ratio", "MiB",
                "its MiB", "set-up", "its", "its form"
            for (i = 1; i <= n; i++) {
                key = order[i]
                split(key, part, FS)
                ratio = best[key] > 0 ? sprintf("%.2f", weft[key] / best[key]) : "-"
                printf "%-10s %-5s %-16s %9s %9s %6s %9s %9s %6s %6s  %s %s\n", part[1], part[2], part[3], weft[key], best[key],
                    ratio, room[key], its[key], setup[key], first[key], form[key], busy[key]
            }
        }' "$1"
}

machine=$(awk -F': ' '/model name/ { gsub(",", " ", $2); print $2; exit }' /proc/cpuinfo)
library=$(ldd "$build/tests/bench/bench_step" | awk '/libdnnl/ { print $3 }')
versions="oneDNN $(readlink -f "$library" | sed 's/.*\.so\.//')"
[ -z "$python" ] || versions="$versions PyTorch $("$python" -c 'import torch; print(torch.__version__)')"
head="machine,level,versions,model,precision,batch,who,median,least,most,mib,setup,others"
[ -s "$csv" ] || echo "$head" >"$csv"
[ "$(head -n 1 "$csv")" = "$head" ] || stop "$csv has other columns, of an earlier version: should be moved away"
: >"$work/table"
echo "$machine; $versions; $threads threads; samples per second, medians of $rounds"
for level in $levels; do
    while read -r name model batch iterations options; do
        # shellcheck disable=SC2086
        case " ${*:-$usual} " in
            *" $name "*) row "$level" "$name" "$model" "$batch" "$iterations" $options ;;
        esac
    done <<END
$models
$named
END
done
table "$work/table"
if [ -n "$python" ]; then
    for level in $levels; do
        { head -n 1 "$csv" && cat "$work/level-$level"; } >"$work/now.csv"
        "$here/bars.sh" "$work/now.csv" "$build/bench-all-$level.svg" && echo "bars: $build/bench-all-$level.svg"
    done
fi
