#!/bin/sh
# segment logs the same losses however its images are cut, and leaves a picture; wrong sizes end in one line:
# EXAMPLES MPIEXEC
. "$(dirname "$0")/begin.sh"

# run RANKS MESH OPTIONS: a file of iteration, loss and IoU
run() {
    dir=$work/$2
    "$mpiexec" -np "$1" "$examples/segment" --channels 4 --iterations 3 --log-every 1 --seed 5 --mesh "$2" --out "$dir" \
        $3 >"$work/out"
    number='-\{0,1\}[0-9][0-9.e+-]*'
    rest="\"images_per_second\": $number, \"elapsed_seconds\": $number}"
    sed -n "s/^{\"iteration\": \([0-9]*\), \"loss\": \($number\), \"iou\": \($number\), $rest\$/\1 \2 \3/p" \
        "$dir/log.jsonl" >"$dir/losses"
    [ "$(wc -l <"$dir/losses")" = 3 ] || fail "$2: a line of the log is not what it should be"
    head -c 4 "$dir/segment.png" | grep -q PNG || fail "$2: there is no picture"
}

# compare MESH OTHER
compare() {
    paste "$work/$1/losses" "$work/$2/losses" | awk -v name="$2" '
        function far(a, b) { return (a - b > 1e-3 || b - a > 1e-3) }
        $1 != $4 || far($2, $5) || far($3, $6) { print name ": " $0; failed = 1 }
        END { exit failed }'
}

images="--size 64 --depth 3"
run 1 data=1 "$images"
[ "$(cut -d ' ' -f 2 "$work/data=1/losses" | sort -u | wc -l)" = 3 ] || fail "the losses do not change"
for cut in "2 height=2" "3 height=3" "4 height=2,width=2" "4 data=2,width=2"; do
    run $cut "$images"
    compare data=1 "${cut#* }"
done

# Recomputation changes no digit.
cp "$work/height=2/losses" "$work/kept"
run 2 height=2 "$images --recompute"
cmp "$work/kept" "$work/height=2/losses" || fail "--recompute gives other losses"

run 4 channel=2,height=2 "$images --parallel mesh"
compare data=1 channel=2,height=2

# Statistics of the images at one place along data: of a cut image, those of all its pixels; other losses than in one process.
for cut in "2 data=2" "4 data=2,width=2"; do
    run $cut "$images --norm batch"
    ! compare data=1 "${cut#* }" >/dev/null || fail "--norm batch has the statistics of all images"
done
compare data=2 data=2,width=2

for cut in "1 data=1" "2 width=2"; do
    run $cut "$images --norm group"
done
compare data=1 width=2

volumes="--dims 3 --size 16 --depth 2"
run 1 height=1 "$volumes"
run 4 depth=2,width=2 "$volumes"
compare height=1 depth=2,width=2

for options in "--norm weight" "--dims 4" "--size 40 --depth 4" "--mesh height=9" "--mesh depth=2"; do
    code=0
    "$mpiexec" -np 2 "$examples/segment" --out "$work/no" $options >"$work/out" 2>&1 || code=$?
    [ "$code" != 0 ] || fail "segment $options goes on"
    [ "$(grep -c '^segment: ' "$work/out")" = 1 ] || fail "segment $options: $(cat "$work/out")"
    [ "$options" != "--size 40 --depth 4" ] || grep -q '^segment: --size 40: should be a multiple of 16,' "$work/out" ||
        fail "segment $options: $(cat "$work/out")"
done
