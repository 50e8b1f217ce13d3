#!/bin/sh
# vgg_cifar and dcgan_cifar print the same losses however the ranks share the work, and vgg_cifar sees every test image
# once; wrong options end in one line: EXAMPLES MPIEXEC RANKS
. "$(dirname "$0")/begin.sh"
. "$(dirname "$0")/small_images.sh"
small_images "$work/images" 256 100
export WEFT_DATA="$work/images"

vgg() {
    "$mpiexec" -np "$1" "$examples/vgg_cifar" --width 4 --batch 16 --iterations 3 --epochs 1 $2 >"$work/out"
    sed -n 's/^epoch 1  loss \([0-9.]*\)  accuracy [0-9.]* (\([0-9]* of 100\)).*/\1 \2/p' "$work/out"
}

gan() {
    "$mpiexec" -np "$1" "$examples/dcgan_cifar" --channels 32 --batch 8 --iterations 3 --log-every 1 --out "$work/gan" \
        $2 >"$work/out"
    sed 's/.*"dis_loss": \([^,]*\), "gen_loss": \([^,]*\),.*/\1 \2/' "$work/gan/log.jsonl" |
        awk '{ printf "%.4f %.4f\n", $1, $2 }'
}

# same PROGRAM RANKS LOSSES OPTIONS
same() {
    seen=$($1 "$2" "$4")
    [ "$seen" = "$3" ] || fail "$1 on $2 ranks, $4: $seen; should be $3"
}

# The ranks share the layers of one batch: that of one rank.
for program in vgg gan; do
    [ "$ranks" != 4 ] || continue
    should=$($program 1 "")
    [ -n "$should" ] || fail "$program prints no losses"
    # Two ranks, in the short suite, try two of the four; three ranks try all.
    case $ranks$program in
    2vgg) ways="channel --sync-bn|spatial" ;;
    2gan) ways="channel|spatial --mesh width=2 --sync-bn" ;;
    *) ways="channel|channel --sync-bn|spatial|spatial --mesh width=$ranks --sync-bn" ;;
    esac
    echo "$ways" | tr '|' '\n' >"$work/ways"
    while read -r way; do
        same $program "$ranks" "$should" "--parallel $way" </dev/null
    done <"$work/ways"
done

# Two places along data, of one rank each or of two: the same batches, and with --sync-bn the same statistics.
if [ "$ranks" = 4 ]; then
    for program in vgg gan; do
        should=$($program 1 "")
        same $program 4 "$should" "--parallel spatial --mesh height=2,width=2"
        same $program 4 "$should" "--parallel mesh --mesh channel=2,width=2 --sync-bn"
        should=$($program 2 "--sync-bn")
        same $program 4 "$should" "--parallel channel --mesh channel=2 --sync-bn"
        same $program 4 "$should" "--parallel spatial --mesh data=2,height=2 --sync-bn"
        should=$($program 2 "--parallel data")
        same $program 4 "$should" "--parallel spatial --mesh width=2"
        same $program 4 "$should" "--parallel channel --mesh channel=2"
    done
fi

# Files of wf-data, of which each rank reads its part; those without labels are refused in one line.
if [ "$ranks" = 2 ]; then
    data=$examples/../tools/wf-data
    "$data" mnist "$work/images" -o "$work/train.h5" >/dev/null
    "$data" mnist "$work/images" --test -o "$work/test.h5" >/dev/null
    files="--data $work/train.h5 --test $work/test.h5"
    should=$(vgg 1 "$files")
    [ -n "$should" ] || fail "vgg_cifar $files prints no losses"
    same vgg 2 "$should" "$files --parallel spatial"
    [ "$(vgg 1 "$files --no-flip")" != "$should" ] || fail "vgg_cifar --no-flip changes nothing"
    "$data" idx "$work/images/train-images-idx3-ubyte" -o "$work/nameless.h5" >/dev/null
    code=0
    "$mpiexec" -np 2 "$examples/vgg_cifar" --data "$work/nameless.h5" >"$work/out" 2>&1 || code=$?
    [ "$code" != 0 ] && grep -q '^vgg_cifar: .*nameless.h5: labels of 0 classes' "$work/out" ||
        fail "vgg_cifar without labels: $(cat "$work/out")"
fi

code=0
"$mpiexec" -np "$ranks" "$examples/dcgan_cifar" --channels 12 --out "$work/gan" >"$work/out" 2>&1 || code=$?
[ "$code" != 0 ] && grep -q '^dcgan_cifar: --channels 12: should be a multiple of 8' "$work/out" ||
    fail "dcgan_cifar --channels 12: $(cat "$work/out")"

# said TEXT OPTIONS: vgg_cifar ends in one line, which contains the text.
said() {
    code=0
    "$mpiexec" -np "$ranks" "$examples/vgg_cifar" $2 >"$work/out" 2>&1 || code=$?
    [ "$code" != 0 ] && [ "$(grep -c '^vgg_cifar: ' "$work/out")" = 1 ] && grep -qF -- "$1" "$work/out" ||
        fail "vgg_cifar $2: $(cat "$work/out")"
}
said "--mesh height=2: needs --parallel spatial or mesh" "--mesh height=2"
said "--mesh channel=2: needs --parallel channel or mesh" "--parallel spatial --mesh channel=2"
said "--mesh channel=2,width=2: needs --parallel mesh" "--mesh channel=2,width=2"
said "--mesh height=7: there are $ranks ranks; use -np 7 or a multiple, or axes that divide the ranks" "--parallel spatial --mesh height=7"
"$examples/vgg_cifar" --parallel spatial --mesh height=3 >"$work/out" 2>&1 && fail "vgg_cifar --mesh height=3 goes on"
grep -q '^vgg_cifar: --mesh height=3: there is 1 rank; use -np 3 or a multiple' "$work/out" || fail "$(cat "$work/out")"
said "--mesh data=9,height=1: there are $ranks ranks; use -np 9, or axes that have as many ranks" "--mesh data=9,height=1"

for options in "--parallel rows" "--mesh height" "--mesh height=0" "--mesh tower=2" "--mesh height=7" "--mesh depth=2"; do
    code=0
    "$mpiexec" -np "$ranks" "$examples/vgg_cifar" $options >"$work/out" 2>&1 || code=$?
    [ "$code" != 0 ] || fail "vgg_cifar $options goes on"
    [ "$(grep -c '^vgg_cifar: ' "$work/out")" = 1 ] || fail "vgg_cifar $options: $(cat "$work/out")"
done
