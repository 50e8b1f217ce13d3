#!/bin/sh
# Signals to the launcher and to single ranks: all ranks save at their next step and leave together, with a code of their
# own; a second SIGINT ends at once. What is on disk afterwards is what the next run finds:
# tests/file/checkpoint_signals.sh MPIEXEC RANKS PROGRAM
set -eu
mpiexec=$1 ranks=$2 program=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export WEFT_LOG=error WEFT_TRACE="$folder/trace"
mkdir "$folder/trace" "$folder/saves"
saved=0 launcher=

fail() {
    echo "$what: $1"
    cat "$folder/out" "$folder/err"
    [ -z "$launcher" ] || kill -KILL "$launcher" 2>/dev/null || true # whose ranks end with it
    exit 1
}

# start MILLISECONDS: a run whose steps take so long; it has found what the one before saved.
start() {
    rm -f "$folder"/saves/pid.*
    "$mpiexec" -np "$ranks" "$program" "$folder/saves" "$1" >"$folder/out" 2>"$folder/err" &
    launcher=$!
    tries=0
    # The launcher hands on what ranks print when it comes to it.
    while [ "$(ls "$folder/saves" | grep -c '^pid\.[0-9]*$')" -lt "$ranks" ] || ! grep -q '^found [0-9]' "$folder/out"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "it does not begin"
        sleep 0.05
    done
    grep -q "^found $saved\$" "$folder/out" || fail "it should have found step $saved"
}

rank() {
    cat "$folder/saves/pid.$1"
}

# finish CODE...: how it ends; "saved" where all ranks have left after a save.
finish() {
    code=0
    wait $launcher || code=$?
    left=$(sed -n 's/^left //p' "$folder/out")
    case " $* " in
    *" $code "*) ;;
    *) fail "the exit code is $code, should be one of $*" ;;
    esac
}

expect_saved() {
    [ -n "$left" ] && [ "$left" -gt "$saved" ] || fail "it did not save and leave: left at '$left' after $saved"
    saved=$left
    echo "ok   $what: step $saved, code $code"
}

# The launcher forwards USR1 and goes on; TERM and INT end the job, in what order and with what code is its own affair,
# but it gives the ranks this time before TERM, and again before KILL.
what="USR1 to the launcher"
start 5
kill -USR1 $launcher
finish 85
expect_saved
for signal in TERM INT; do
    what="$signal to the launcher, which waits"
    export OMPI_MCA_odls_base_sigkill_timeout=3 PRTE_MCA_odls_base_sigkill_timeout=3
    start 5
    kill -$signal $launcher
    finish 85 143 130 1
    expect_saved
    unset OMPI_MCA_odls_base_sigkill_timeout PRTE_MCA_odls_base_sigkill_timeout
done
for signal in USR1 TERM INT; do
    what="$signal to the last rank alone"
    start 5
    kill -$signal "$(rank $((ranks - 1)))"
    finish 85
    expect_saved
done

# Within one step of two seconds the launcher's patience of one ends: the last good file is found.
what="TERM to the launcher, which does not wait"
start 2000
kill -TERM $launcher
finish 143 1 137 85
[ -z "$left" ] || saved=$left
echo "ok   $what: left at '${left}', code $code"

what="INT twice to a rank"
start 1500
kill -INT "$(rank 0)"
sleep 0.2
kill -INT "$(rank 0)"
finish 130 1
[ -z "$left" ] || fail "it left in order"
echo "ok   $what: code $code"

what="a run after all of them"
start 5
kill -USR1 $launcher
finish 85
expect_saved
