#!/usr/bin/env bash
# The measurements of tests/gpu/run.sh, which reads this file: models beside PyTorch's, passes of kernels, convolutions.
# shellcheck disable=SC2154,SC2317 # variables are those of run.sh, and functions are called by name there

# sizes MODEL: options for both sides; small ones where there is no GPU.
sizes() {
    if on_gpu; then
        case $1 in
        dcgan) echo "--channels 512 --batch 256 --iterations 30" ;;
        small) echo "--channels 128 --batch 16 --iterations 200" ;;
        vgg) echo "--width 64 --batch 256 --iterations 60" ;;
        vgg_small) echo "--width 64 --batch 8 --iterations 200" ;;
        unet2) echo "--width 64 --size 512 --batch 8 --iterations 15" ;;
        unet3) echo "--width 32 --size 128 --batch 1 --iterations 15" ;;
        esac
    else
        case $1 in
        dcgan | small) echo "--channels 16 --batch 4 --iterations 2" ;;
        vgg*) echo "--width 4 --batch 4 --iterations 2" ;;
        unet*) echo "--width 4 --size 32 --batch 1 --iterations 2" ;;
        esac
    fi
}

# Prints the model that this one is a size of.
base() {
    case $1 in
    dcgan | small) echo dcgan ;;
    vgg*) echo vgg ;;
    *) echo "$1" ;;
    esac
}

# bench PROGRAM OPTION...
bench() {
    local program=$1
    shift
    WEFT_DEVICE=$device WEFT_AUTOTUNE=$tune "$(tool mpirun)" -np 1 "$build/tests/bench/$program" "$@"
}

# weft MODEL: a rate in each precision that the bench offers; replayed, or, where that fails, as it is.
weft() {
    local precision rate program=bench_step offers how
    local -a options
    read -ra options <<<"--model $(base "$1") $(sizes "$1")"
    [ "$(base "$1")" != dcgan ] || { program=bench_dcgan && read -ra options <<<"$(sizes "$1")"; }
    has "bench/$program"
    offers=$("$build/tests/bench/$program" --help)
    for precision in f32 bf16 f16; do
        if [ "$precision" != f32 ]; then
            [[ $offers == *--compute* ]] || continue
            options+=(--compute "$precision")
        fi
        how=replayed
        rate=$(bench "$program" "${options[@]}" --captured) || {
            how="not replayed"
            rate=$(bench "$program" "${options[@]}") || return 1
        }
        rate=$(tail -n 1 <<<"$rate")
        echo "rate $1 $precision weft $rate"
        echo "figure: $precision $rate, $how"
    done
}

# pytorch MODEL PRECISION [OPTION]: the images per second of the fastest form, and its name.
pytorch() {
    local model=$1 precision=$2
    shift 2
    [ "$tune" = 1 ] || set -- --untuned "$@"
    # shellcheck disable=SC2046 # options
    python3 tests/bench/bench_torch.py --model "$(base "$model")" --device "$device" --precision "$precision" \
        $(sizes "$model") --best "$@" | tail -n 1
    return "${PIPESTATUS[0]}"
}

has_torch() {
    python3 -c 'import torch' 2>/dev/null || { echo "python3 has no PyTorch" && exit 77; }
}

# torch MODEL: PyTorch's best in each precision.
torch() {
    local precision line
    has_torch
    for precision in f32 bf16; do
        line=$(pytorch "$1" "$precision" --seconds 25) || return 1
        echo "rate $1 $precision torch $line"
        echo "figure: $precision $line"
    done
}

# warm MODEL SECONDS: PyTorch's compiler keeps what it makes; later it finds it. No harm where that fails.
warm() {
    local precision
    has_torch
    for precision in f32 bf16; do
        timeout "$2" bash "$self" call pytorch "$1" "$precision" --warm || { echo "nothing is kept" && exit 77; }
    done
}

# kernels TYPE: bandwidth of passes, beside that of a copy.
kernels() {
    has bench/bench_kernels
    local -a quick=()
    on_gpu || quick=(quick)
    "$build/tests/bench/bench_kernels" "$device" "$1" passes "${quick[@]}" | tee "$work/kernels_$1.out"
    [ "${PIPESTATUS[0]}" = 0 ] || return 1
    # The share of a copy that each pass of a normalisation, a pool and an upsampling has, in the last table.
    awk '/^\[/ { line = "" }
         /^(norm_|pool |upsample)/ { name = substr($0, 1, 26); gsub(/,| *$/, "", name); line = line ", " name " " $(NF - 1) " %" }
         END { print "figure: " substr(line, 3) }' "$work/kernels_$1.out"
}

# convolutions TYPE SECONDS: beside cuDNN's best plan alone.
convolutions() {
    has bench/bench_cuda_conv
    WEFT_AUTOTUNE=$tune "$build/tests/bench/bench_cuda_conv" "$1" "$2"
}

# Weft beside PyTorch, from what both printed.
compare() {
    sed -n 's/^rate //p' "$work"/*.log | awk '
        { key = $1 " " $2; if (!(key in seen)) { seen[key] = 1; order[++n] = key } rate[key, $3] = $4; how[key] = $3 == "torch" ? $5 : how[key] }
        END {
            for (i = 1; i <= n; i++) {
                key = order[i]; split(key, part, " ")
                w = rate[key, "weft"]; t = rate[key, "torch"]
                if (w == "" || t == "" || t + 0 == 0) continue
                printf "%s_%s %.1f %.1f %s %.2f %s\n", part[1], part[2], w, t, how[key], w / t, part[1] ~ /small/ ? "1.3" : "1.1"
            }
        }'
}
