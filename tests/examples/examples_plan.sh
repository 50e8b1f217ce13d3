#!/bin/sh
# wf-plan starts programs, which answer with a plan; they follow it and compute what one rank does; what cannot be is
# refused in a line: EXAMPLES MPIEXEC RANKS WF_PLAN [whole]. Or what was measured on virtual nodes (CLUSTER is cluster.sh) is
# known in the next run on nodes like them, and not on others: EXAMPLES MPIEXEC RANKS WF_PLAN cluster CLUSTER
. "$(dirname "$0")/begin.sh"
plan=$4 extent=${5:-short}
. "$(dirname "$0")/small_images.sh"
small_images "$work/images" 256 100
export WEFT_DATA="$work/images" WEFT_CACHE="$work/cache"

vgg="$examples/vgg_cifar --width 4 --batch 16"

# measured RATE: how many numbers wf-plan measures on two nodes behind links of this rate
measured() {
    "$plan" --ranks 2 --nodes 2 --measure 2 --mesh data=2 --mpirun "$cluster -r $1 -n 1+1 $mpiexec" -- $vgg >"$work/out" 2>&1 ||
        fail "$(cat "$work/out")"
    sed -n 's/^measured on .*: \([0-9]*\) numbers, and .*/\1/p' "$work/out"
}

if [ "$extent" = cluster ]; then
    cluster=$6
    "$cluster" -n 1+1 "$mpiexec" true || exit $?
    first=$(measured 1gbit) again=$(measured 1gbit) other=$(measured 2gbit)
    [ "$first" -gt 0 ] && [ "$again" = 0 ] && [ "$other" = "$first" ] ||
        fail "$first numbers were measured, the second time $again, behind faster links $other"
    exit 0
fi

# loss RANKS OPTIONS; of few steps, since rounding grows from step to step
loss() {
    "$mpiexec" -np "$1" $vgg --iterations 3 --epochs 1 $2 >"$work/out" || fail "vgg_cifar $2: $(cat "$work/out")"
    sed -n 's/^epoch 1  loss \([0-9.]*\)  accuracy [0-9.]* (\([0-9]* of 100\)).*/\1 \2/p' "$work/out"
}

# same OPTIONS OF WF-PLAN
same() {
    "$plan" --ranks "$ranks" --mpirun "$mpiexec" -o "$work/plan.json" $1 -- $vgg >"$work/out" 2>&1 || fail "wf-plan $1: $(cat "$work/out")"
    grep -q '^predicted: .* ms a step of 16 samples' "$work/out" || fail "wf-plan $1 predicts nothing: $(cat "$work/out")"
    [ -z "${2:-}" ] || sed -i "$2" "$work/plan.json"
    seen=$(loss "$ranks" "--plan $work/plan.json")
    [ "$seen" = "$should" ] || fail "wf-plan $1 ${2:-}: $seen; should be $should"
}

should=$(loss 1 "")
[ -n "$should" ] || fail "vgg_cifar prints no losses"
# Some layers are whole, some cut, and some are computed again.
same "--mesh height=2 --split spatial" '/"path": "\(1\/.\|3\/[0-4]\)"/s/"spatial"/"data"/; /"path": "[02]\/[0-3]"/s/"recompute": false/"recompute": true/'
if [ "$extent" = short ]; then
    sed -i 's/"data": [0-9]*/"data": 7/' "$work/plan.json"
    "$mpiexec" -np "$ranks" $vgg --plan "$work/plan.json" >"$work/out" 2>&1 && fail "a mesh of other ranks is taken"
    [ "$(grep -c 'vgg_cifar: .*plan.json: the mesh has' "$work/out")" = 1 ] || fail "$(cat "$work/out")"
    exit 0
fi
same "--mesh height=2 --split spatial"

# sent_as_predicted LEAST: in the table of the last run every layer has sent what was predicted, and so many something
sent_as_predicted() {
    awk -v least="$1" '/^layer /{ table = 1; next } table && NF == 7 { d = $6 - $7; rows += $6 > 0; wrong += d > 0.0015 || d < -0.0015 }
        END { exit !(rows >= least && !wrong) }' "$work/out" || fail "bytes of layers, of $1 at least: $(cat "$work/out")"
}
"$mpiexec" -np "$ranks" $vgg --iterations 14 --epochs 1 --plan "$work/plan.json" >"$work/out"
sent_as_predicted 13
same "--mesh channel=2 --split channel" '/"path": "[13]\/."/s/"channel"/"data"/'
grep -q '"path": "1/0", "split": "data"' "$work/plan.json" || fail "sed changed nothing"

# field NAME FILE: a number of a plan
field() {
    sed -n "s/.*\"$1\": \([0-9.e+-]*\).*/\1/p" "$2" | head -1
}

# Everything is known the second time.
"$plan" --ranks "$ranks" --mpirun "$mpiexec" --mesh channel=2 --split channel -- $vgg >"$work/out"
grep -q ': 0 numbers, and' "$work/out" || fail "measured again: $(cat "$work/out")"

# What is chosen freely is followed, by each program.
"$plan" --ranks "$ranks" --mpirun "$mpiexec" -o "$work/free.json" --curves "$work/curve" --to 100000 -- $vgg >"$work/out"
"$mpiexec" -np "$ranks" $vgg --iterations 14 --epochs 1 --plan "$work/free.json" >"$work/out"
grep -q '^plan: a step takes .* predicted' "$work/out" || fail "no comparison: $(cat "$work/out")"
grep -q '^# Predicted, not measured' "$work/curve.csv" && grep -q '^weak scaling,100000,' "$work/curve.csv" ||
    fail "no curves: $(cat "$work/curve.csv")"
# curve_is_of PLAN CURVE: begins at efficiency 1, and passes through the plan
curve_is_of() {
    grep -q '^# Constants: in a node' "$2" && awk -F, -v ranks="$(field ranks "$1")" -v step="$(field step_s "$1")" '
        $1 == "strong scaling" { if (!rows++) first = $12; if ($2 == ranks) ratio = $5 / step }
        END { exit !(first == 1 && ratio > 0.9999 && ratio < 1.0001) }' "$2" || fail "not the curve of the plan: $(cat "$2" "$1")"
}
curve_is_of "$work/free.json" "$work/curve.csv"
grep -q 'Predicted scaling (not measured)' "$work/curve.svg" && grep -q '^</svg>' "$work/curve.svg" || fail "no picture"
auto="$examples/autoencoder --batch 16 --width 32"
"$plan" --ranks "$ranks" --mpirun "$mpiexec" --mesh stage=2 -o "$work/stages.json" --curves "$work/staged" --to 64 -- $auto >"$work/out" ||
    fail "$(cat "$work/out")"
curve_is_of "$work/stages.json" "$work/staged.csv"
"$mpiexec" -np "$ranks" $auto --steps 14 --out "$work/auto" --plan "$work/stages.json" >"$work/out"
grep -q '^plan: a step takes' "$work/out" || fail "autoencoder: $(cat "$work/out")"
# A model by name, in stages of which each is split by channels, and in as many chunks as asked for.
"$plan" --ranks 4 --measure "$ranks" --mpirun "$mpiexec" --mesh stage=2,channel=2 --split channel --chunks 4 \
    -o "$work/named.json" -- vgg16 --width 4 --batch 16 >"$work/out" || fail "wf-plan vgg16: $(cat "$work/out")"
grep -q '"stage": 2, "channel": 2' "$work/named.json" && grep -q '"split": "channel"' "$work/named.json" &&
    grep -q '^stages: 4 chunks, .* idle for .* % of the time, .* % if all were equal' "$work/out" ||
    fail "wf-plan vgg16: $(cat "$work/out" "$work/named.json")"
segment="$examples/segment --size 32 --channels 2 --depth 2"
"$plan" --ranks "$ranks" --mpirun "$mpiexec" --mesh width=2 -o "$work/cut.json" -- $segment >/dev/null
"$mpiexec" -np "$ranks" $segment --iterations 14 --out "$work/segment" --plan "$work/cut.json" >"$work/out"
grep -q '^plan: a step takes' "$work/out" || fail "segment: $(cat "$work/out")"

volumes="$examples/segment --dims 3 --size 16 --channels 2 --depth 1"
"$plan" --ranks "$ranks" --mpirun "$mpiexec" --mesh depth=2 -o "$work/volumes.json" -- $volumes >"$work/out" || fail "$(cat "$work/out")"
"$mpiexec" -np "$ranks" $volumes --iterations 14 --out "$work/segment" --plan "$work/volumes.json" >"$work/out"
grep -q '"depth": 2' "$work/volumes.json" && grep -q '^plan: a step takes' "$work/out" || fail "segment: $(cat "$work/out")"
for model in "resnet18 --width 4" "resnet50 --width 4 --size 64" "convnext_t --width 4 --size 32" "unet --width 2 --size 32" "autoencoder --width 32" mnist_mlp mnist_cnn; do
    "$plan" --ranks 1 -- $model --batch 2 >"$work/out" 2>&1 || fail "$model: $(cat "$work/out")"
    grep -q '^predicted: .* ms a step of 2 samples' "$work/out" || fail "$model: $(cat "$work/out")"
done

# refused PATTERN COMMAND ...: one line that says so
refused() {
    pattern=$1
    shift
    code=0
    "$@" >"$work/out" 2>&1 || code=$?
    [ "$code" != 0 ] && [ "$(grep -c "$pattern" "$work/out")" = 1 ] || fail "$*: $(cat "$work/out")"
}

sed 's/"data": [0-9]*/"data": 7/' "$work/free.json" >"$work/bad.json"
sed 's/"path": "1\/0"/"path": "1\/99"/' "$work/free.json" >"$work/foreign.json"
refused 'vgg_cifar: .*bad.json: the mesh has' "$mpiexec" -np "$ranks" $vgg --plan "$work/bad.json"
refused 'vgg_cifar: .*none.json' "$mpiexec" -np "$ranks" $vgg --plan "$work/none.json"
refused 'vgg_cifar: .*: a plan for 2 ranks, these are 1' "$mpiexec" -np 1 $vgg --plan "$work/free.json"
refused 'vgg_cifar: --batch 8: the plan is for 16' "$mpiexec" -np "$ranks" $vgg --batch 8 --plan "$work/free.json"
refused 'autoencoder: --batch 8: the plan is for 16' "$mpiexec" -np "$ranks" "$examples/autoencoder" --width 32 --batch 8 \
    --out "$work/auto" --plan "$work/stages.json"
sed 's/"ranks"/"ranke"/' "$work/free.json" >"$work/lacks.json"
refused 'vgg_cifar: .*lacks.json: there is no "ranks", which should be a number' "$mpiexec" -np "$ranks" $vgg --plan "$work/lacks.json"
refused 'vgg_cifar: .*another model' "$mpiexec" -np "$ranks" $vgg --plan "$work/foreign.json"
refused 'vgg_cifar: --plan: it has stages.*stages.json has "stage": 2, should be 1' "$mpiexec" -np "$ranks" $vgg --plan "$work/stages.json"
refused 'dcgan_cifar: wf-plan plans one model' "$plan" --ranks 2 --mpirun "$mpiexec" -- "$examples/dcgan_cifar"
refused '^wf-plan: true has ended without a plan: it should call' "$plan" --ranks 1 -- true
(cd "$work" && refused '^wf-plan: .*/mnist has ended without a plan' "$plan" --ranks 2 --mpirun "$mpiexec" -- "$examples/mnist" --epochs 1 --batch 50)
refused '^wf-plan: vgg16 --widht 4: should be a model with --batch N' "$plan" --ranks 1 -- vgg16 --widht 4
refused '^wf-plan: mnist_mlp --width 4: should be' "$plan" --ranks 1 -- mnist_mlp --width 4
refused '^wf-plan: --chunks 0: should be' "$plan" --ranks 2 --chunks 0 -- $vgg
refused 'vgg_cifar: no plan for 2 ranks fits into 0.1 MiB' "$plan" --ranks 2 --mpirun "$mpiexec" --memory 100KB -- $vgg
refused '^wf-plan: --memory plenty: should be' "$plan" --ranks 2 --memory plenty -- $vgg
refused '^wf-plan: --nodes 3: should be' "$plan" --ranks 2 --nodes 3 -- $vgg
refused '^wf-plan: --link 1: should be' "$plan" --ranks 2 --link 1 -- $vgg

