#!/bin/sh
# Studies: tests/optim/study.sh MPIEXEC RANKS PROGRAM and one of
#     cases [NAME ...]                          those of the program
#     waits                                     the last group takes longer than ranks wait for each other
#     sequence "SAMPLER PRUNER [STORAGE]" ...   suggestions against Optuna's
#     killed .db|.journal TRIALS KILL ...       a study that is killed, each time after so many trials in all
#     dies STORAGE                              a trial whose process dies each time
#     python [:]                                Pythons that are missing or broken; ":": also those that are so at once
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mpiexec=$1 ranks=$2 program=$3 what=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "$1"
    cat "$work"/*.txt
    exit 1
}

find_optuna() {
    for python in ${WEFT_PYTHON-} /usr/bin/python3 python3; do
        if "$python" -c 'import optuna' 2>/dev/null; then
            export WEFT_PYTHON="$python"
            return
        fi
    done
    echo "SKIP: no Python has Optuna (package python3-optuna)"
    exit 77
}

# The Python of a study lives as long as rank 0 of its group. What this script has started has its mark.
export STUDY_TEST="$work"
running() {
    for process in /proc/[0-9]*; do
        case $(cat "$process/comm" 2>/dev/null) in
        python3 | sleep | cat | fake) grep -qsz "^STUDY_TEST=$work\$" "$process/environ" && return 0 ;;
        esac
    done
    return 1
}
nothing_left() {
    for i in $(seq 600); do
        running || return 0
        sleep 0.1
    done
    fail "a Python process is left behind"
}

# With a seed, and one group, the suggestions are Optuna's own.
sequence() {
    for each in "$@"; do
        set -- $each
        if [ "$1" = qmc ] && ! "$WEFT_PYTHON" -c 'import scipy' 2>/dev/null; then
            echo "SKIP: $WEFT_PYTHON has no package scipy, which the sampler qmc needs"
            exit 77
        fi
        "$WEFT_PYTHON" "$here/study.py" "$1" "$2" >"$work/optuna.txt"
        "$mpiexec" -np "$ranks" "$program" sequence "$1" "$2" "${3+$work/$3}" >"$work/weft.txt" 2>"$work/err.txt" ||
            fail "$1: the program failed"
        [ "$(wc -l <"$work/optuna.txt")" = 25 ] || fail "$1: not 25 trials"
        "$WEFT_PYTHON" -c '
import sys
for line in open(sys.argv[1]):
    x, lr, n, split, pruned = line.split()
    print(float.fromhex(x).hex(), float.fromhex(lr).hex(), n, split, pruned)' "$work/weft.txt" >"$work/said.txt"
        cmp -s "$work/optuna.txt" "$work/said.txt" || fail "$1: not the suggestions of Optuna"
        [ "$2" = none ] || grep -q ' 1$' "$work/said.txt" || fail "$1: nothing was pruned"
    done
}

count() {
    cat "$work/$1" 2>/dev/null | wc -l
}

# wait_for begun|made NUMBER
wait_for() {
    for i in $(seq 1500); do
        [ "$(count "$1")" -lt "$2" ] || return 0
        sleep 0.02
    done
    fail "there are no $2 trials $1"
}

# kill_after TRIALS: starts the study and kills all of its processes at once, in the middle of a trial, once so many trials
# have been made.
kill_after() {
    : >"$work/pids"
    rm -f "$work/hold"
    "$mpiexec" -np "$ranks" "$program" run "$storage" 2 "$trials" "$work" >"$work/run$1.txt" 2>&1 &
    job=$!
    wait_for made "$1"
    begun=$(count begun)
    : >"$work/hold"
    wait_for begun $((begun + 1))
    kill -9 $job $(cat "$work/pids") 2>/dev/null || fail "the job has ended before it was killed"
    wait $job 2>/dev/null || true
    rm -f "$work/hold"
}

# killed ENDING TRIALS KILL ...: two groups, killed in the middle of trials; in the end no trial is lost and no one twice.
killed() {
    storage=$work/killed$1 trials=$2
    shift 2
    for each in "$@"; do
        kill_after "$each"
    done
    : >"$work/pids"
    timeout 400 "$mpiexec" -np "$ranks" "$program" run "$storage" 2 "$trials" "$work" >"$work/run.txt" 2>&1 ||
        fail "the last run failed"
    retried=$(sed -n "s/^complete $trials, retried \([0-9]*\), others 0\$/\1/p" "$work/run.txt")
    [ -n "$retried" ] && [ "$retried" -ge $# ] && [ "$retried" -le $((2 * $#)) ] || fail "not $trials trials are complete"
    # What was made and not yet told is made again.
    [ "$(count made)" -ge "$trials" ] && [ "$(count made)" -le $((trials + retried)) ] ||
        fail "$(count made) trials were made"
    "$WEFT_PYTHON" "$here/study.py" "$storage" "$trials" >"$work/seen.txt" 2>&1 || fail "Optuna finds something else"
    nothing_left
    echo "$# kills: $retried trials were made again, $trials are complete"
}

# dies STORAGE: trial 1 ends the job, and so do its three repetitions; then it has failed, and the study goes on.
dies() {
    for i in 0 1 2 3; do
        ! timeout 240 "$mpiexec" -np "$ranks" "$program" dies "$work/$1" 1 6 "$work" >"$work/run$i.txt" 2>&1 ||
            fail "run $i: no process has died"
        [ "$(count died)" = $((i + 1)) ] || fail "run $i: $(count died) deaths"
    done
    timeout 240 "$mpiexec" -np "$ranks" "$program" dies "$work/$1" 1 6 "$work" >"$work/run.txt" 2>&1 ||
        fail "the study does not go on"
    [ "$(count died)" = 4 ] || fail "$(count died) deaths"
    grep -q '^complete 5, retried 3, others 1$' "$work/run.txt" || fail "not 5 complete, 3 retried, 1 failed"
    grep -q '^trial [0-9]*, of trial [0-9]*, failed: the job was killed 4 times while it ran$' "$work/run.txt" ||
        fail "no reason"
    nothing_left
}

# A program that takes the place of Python.
fake() {
    printf '#!/bin/sh\n%s\n' "$1" >"$work/fake"
    chmod +x "$work/fake"
}

# Every rank has the same line: expect TEXT [VARIABLE=VALUE ...]. Python may take $limit ms for an answer.
limit=50000
expect() {
    text=$1
    shift
    rm -f "$work"/*.db*
    timeout 800 "$mpiexec" -np "$ranks" env "$@" "$program" open "$work/fake.db" "$limit" >"$work/said.txt" 2>"$work/err.txt" ||
        fail "$text: the program failed"
    [ "$(grep -c "^rank [0-9]*: .*$text" "$work/said.txt")" = "$ranks" ] || fail "$text: not every rank says so"
    ! grep LATER "$work/said.txt" || fail "$text: a later call says something else"
    [ "$(sed -n 's/^rank [0-9]*: //p' "$work/said.txt" | sort -u | wc -l)" = 1 ] || fail "$text: the ranks say different things"
}

answered() {
    grep -q Optuna "$work/said.txt" || [ "$(grep -c '^\["io", \|^\["argument", ' "$work/said.txt")" = 4 ]
}
until_answered() {
    for i in $(seq 1000); do
        ! answered || return 0
        sleep 0.1
    done
}

python() {
    install="apt-get install python3-optuna"
    expect "$install.*/nowhere/python: there is no such program" WEFT_PYTHON=/nowhere/python
    expect "$install.*python3: there is no such program" WEFT_PYTHON=python3 PATH=/nowhere
    fake 'exec /usr/bin/python3 -S "$@"'
    expect "$install.*has no Optuna" WEFT_PYTHON="$work/fake"
    # Bridges that end, or are silent, at once or later.
    opened='read script; read request; echo "[\"ok\", \"3\"]"; read request'
    for begin in $1 "$opened"; do
        fake "$begin; exit 3"
        expect "ended with exit code 3" WEFT_PYTHON="$work/fake"
        fake "$begin; sleep 1000"
        limit=700
        expect "timeout: .*did not answer within 700 ms" WEFT_PYTHON="$work/fake"
        limit=50000
        [ -n "$1" ] || continue
        fake "$begin; kill -9 \$\$"
        expect "ended by signal 9" WEFT_PYTHON="$work/fake"
        fake "$begin; echo nonsense; exec cat >/dev/null"
        expect "no line of the study" WEFT_PYTHON="$work/fake"
    done
    nothing_left
    # Lines that are no requests are answered, before the input ends.
    : >"$work/said.txt"
    { printf '\377[\n17\n["nothing"]\n["float", "x"]\n' && until_answered; } |
        /usr/bin/python3 "$here/../../optim/study/bridge.py" >"$work/said.txt" 2>"$work/err.txt" || true
    answered || fail "lines that are no requests are not answered"
    # It has nothing of the job's.
    fake 'env >"'"$work"'/environment"; ls -l /proc/self/fd >"'"$work"'/files"; exit 3'
    expect "ended with exit code 3" WEFT_PYTHON="$work/fake"
    ! grep -E '^(OMPI_|PMIX_|PRTE_)' "$work/environment" >"$work/found.txt" || fail "Python has variables of MPI"
    grep -q '^PATH=' "$work/environment" || fail "Python has no environment"
}

case $what in
cases)
    find_optuna
    shift 4
    timeout 800 "$mpiexec" -np "$ranks" "$program" cases "$work" "$@" || fail "a case failed"
    nothing_left
    ;;
waits)
    find_optuna
    TEST_TIMEOUT_MS=5000 TEST_IDLE_MS=5000 timeout 240 "$mpiexec" -np "$ranks" "$program" waits "$work" ||
        fail "a group that has made its trials does not wait for the other one"
    ;;
sequence)
    find_optuna
    shift 4
    sequence "$@"
    ;;
killed)
    find_optuna
    shift 4
    killed "$@"
    ;;
dies)
    find_optuna
    dies "$5"
    ;;
python) python "${5-}" ;;
esac
