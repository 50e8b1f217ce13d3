#!/bin/sh
# autoencoder learns the same however it is split, of dense layers and of convolutions, and leaves the same pictures; wrong
# words end in one line; the table of its pipelines has its numbers: EXAMPLES MPIEXEC RANKS
. "$(dirname "$0")/begin.sh"
. "$(dirname "$0")/small_images.sh"
small_images "$work/images" 512 64

fail() {
    echo "$1"
    cat "$work/$name.txt"
    exit 1
}

# run NAME RANKS OPTIONS: NAME.txt is what it prints
run() {
    name=$1
    processes=$2
    shift 2
    "$mpiexec" -np "$processes" "$examples/autoencoder" --data "$work/images" --depth 1 --width 48 --batch 60 --steps 8 \
        --log-every 4 --seed 3 --out "$work/$name" "$@" >"$work/$name.txt" 2>&1 || fail "$name: the program failed"
    for each in input reconstruction codes compare; do
        head -c 4 "$work/$name/$each.png" | grep -q PNG || fail "$name: there is no $each.png"
    done
    grep -q "ms/step" "$work/$name.txt" || fail "$name: there is no table"
    [ "$(wc -l <"$work/$name/times.txt")" = 2 ] || fail "$name: there is no times.txt"
}

losses() {
    sed -n 's/^step [0-9]*: loss \([^,]*\),.*/\1/p' "$work/$1.txt"
}

run none 1 --split none
[ "$(losses none | sort -u | wc -l)" = 2 ] || fail "the losses do not change"

reference=none
same() {
    run "$@"
    { losses $reference && losses "$1"; } | awk -v name="$1" '
        function far(a, b) { return (a - b > 1e-5 || b - a > 1e-5) }
        NR <= 2 { first[NR] = $1; next }
        far(first[NR - 2], $1) { print name ": a loss of " $1 ", not " first[NR - 2]; failed = 1 }
        END { exit failed || NR != 4 }' || fail "$1: other losses than one process"
    cmp -s "$work/$reference/input.png" "$work/$1/input.png" || fail "$1: another input.png"
    # What was computed may be rounded to the next level of grey.
    for each in reconstruction codes compare; do
        for one in $reference "$1"; do
            mkdir -p "$work/$one/$each"
            cp "$work/$one/$each.png" "$work/$one/$each"
        done
        "$examples/../tests/examples_pictures" "$work/$reference/$each" "$work/$1/$each" >>"$work/$1.txt" ||
            fail "$1: another $each.png"
    done
}

same naive "$ranks" --split naive
same gpipe "$ranks" --split pipeline --schedule gpipe --chunks 7 --recompute always
same one_f_one_b "$ranks" --split pipeline --chunks 4 --recompute except_last --diagram --profile \
    --timeline "$work/timeline.json"
grep -q '"name": "recv"' "$work/timeline.json" || fail "there is no time line"
grep -q "collective recv" "$work/one_f_one_b.txt" || fail "there is no profile"
[ "$(grep -c '^stage' "$work/one_f_one_b.txt")" = "$ranks" ] || fail "there is no diagram"
grep -q '</svg>' "$work/one_f_one_b/schedule.svg" || fail "there is no schedule.svg"
if [ "$ranks" = 2 ]; then
    same interleaved 2 --split pipeline --schedule interleaved --chunks 4
fi

run conv_none 1 --split none --model convolutional --batch 12 --steps 4 --log-every 2
reference=conv_none
# Adam's first steps are of the whole rate, also where rounding decides the sign of a gradient near 0.
export TEST_LEVELS=24
same conv_pipeline "$ranks" --split pipeline --chunks 5 --model convolutional --batch 12 --steps 4 --log-every 2
cmp -s "$work/none/reconstruction.png" "$work/conv_none/reconstruction.png" && fail "both models give the same pictures"
[ "$(sed -n 's/.* \([0-9.+]*\)$/\1/p' "$work/conv_pipeline/times.txt" | tr '+' '\n' | awk '$1 > 1' | wc -l)" = "$ranks" ] ||
    fail "there is no memory of each stage"
run epochs 1 --split none --epochs 2 --batch 256
grep -q '^step 4: ' "$work/epochs.txt" && ! grep -q '^step 5: ' "$work/epochs.txt" || fail "two epochs are not four steps"

# As many epochs as the option takes: it begins.
name=long
"$examples/autoencoder" --data "$work/images" --depth 1 --width 8 --batch 60 --log-every 1 --split none --epochs 2147483647 \
    --out "$work/long" >"$work/long.txt" 2>&1 &
job=$!
tries=0
until grep -q '^step 2: ' "$work/long.txt"; do
    tries=$((tries + 1))
    kill -0 $job 2>/dev/null && [ $tries -lt 300 ] || { kill $job 2>/dev/null; fail "2147483647 epochs do not begin"; }
    sleep 0.1
done
kill $job
wait $job || true

# A row each for one process, the naive split, and a pipeline, which has the text's seconds.
if [ "$ranks" = 2 ]; then
    name=table
    mkdir "$work/bin"
    # wf-run looks for mpirun, which may be that of another MPI than the one under test.
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$mpiexec" >"$work/bin/mpirun"
    chmod +x "$work/bin/mpirun"
    PATH="$work/bin:$PATH" STEPS=6 CHUNKS=8 SCHEDULES=gpipe RECOMPUTE=except_last \
        "$(dirname "$0")/../bench/pipeline_table.sh" "$examples/.." \
        >"$work/table.txt" 2>&1 || fail "the table failed"
    awk '
        /^one process/ { one = $4 == "1.00" && $6 > 1 && $7 == "-" && $8 == "103.67" }
        /^split naively/ { naive = $6 ~ /[0-9]\+[0-9]/ && $7 > 1 && $7 < 99 && $9 == "112.99" }
        /^gpipe 8 except_last/ { pipe = $7 ~ /[0-9]\+[0-9]/ && $8 > 1 && $8 < 99 && $10 == "130.96" && $11 == "1.26" }
        END { exit !(one && naive && pipe) }' "$work/table.txt" || fail "the table lacks numbers"
fi

refused() {
    name=refused
    ! "$mpiexec" -np "$ranks" "$examples/autoencoder" --data "$work/images" "$1" "$2" >"$work/$name.txt" 2>&1 ||
        fail "$1 $2: should be refused"
    [ "$(grep -c "$3" "$work/$name.txt")" = 1 ] || fail "$1 $2: no clear line"
}

refused --split half "should be one of none, naive, pipeline"
refused --model round "should be one of dense, convolutional"
refused --schedule soon "should be one of 1f1b, gpipe, interleaved"
refused --chunks 300 "should be at most the 256 images of a batch"
: >"$work/file"
refused --out "$work/file" "is a file, should be a folder"
if [ "$ranks" -gt 2 ]; then
    refused --depth 0 "would be empty"
fi
