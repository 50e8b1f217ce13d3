#!/bin/sh
# Ranks that die: [COMMUNICATOR=flat] [EVERY_RANK=1] tests/comm/deaths.sh MPIEXEC PROGRAM WF-DOCTOR [PLACE...]
# At every PLACE of tests/comm/deaths.c one of three ranks gets a SIGKILL, a SIGSEGV, ends by exit(1) or exit(0), or is stopped
# by a SIGSTOP: by the last each rank in turn, by the others a rank that changes from fault to fault and from place to place,
# or with EVERY_RANK each in turn. The others must end with a message and a code that is not 0, within the time-out and five
# seconds from the fault on, and no process may remain: those of a job are known by a mark in their environment.
set -u

all() {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM HUP
    places=${*:-start forward reduction message sample shutdown}
    for place in $places; do
        turn=${#place}
        for fault in stop kill segv exit leave; do
            turn=$((turn + 1))
            [ $fault$place != leaveshutdown ] || continue
            [ $place != two ] || [ $fault = stop ] || continue
            for rank in 0 1 2; do
                [ $fault = stop ] || [ -n "${EVERY_RANK:-}" ] || [ $rank = $((turn % 3)) ] || continue
                echo "$work" "$mpiexec" "$program" "$doctor" "$place" "$fault" "$rank"
            done
        done
    done | xargs -P 4 -n 7 "$0" --job || exit 1
    echo "$(cat "$work"/*.took | wc -l) deaths ended well; the longest took $(cat "$work"/*.took | sort -n | tail -n 1) s"
}

left() {
    grep -lzxF "WEFT_MARK=$mark" /proc/[0-9]*/environ 2>/dev/null | tr -dc '0-9\n'
}

fail() {
    echo "FAIL: $fault of rank $rank, $place: $1"
    cat "$log"
    [ ! -s "$log.late" ] || cat "$log.late"
    kill -KILL $(left) 2>/dev/null
    exit 255 # xargs starts nothing more
}

# Prints what the processes of a job do that hangs, for the log of its failure.
describe() {
    for pid in $(left); do
        echo "process $pid: $(tr '\0' ' ' </proc/$pid/cmdline): $(grep -E '^(State|Threads|SigPnd|ShdPnd)' /proc/$pid/status | tr '\n\t' ', ')"
        for thread in /proc/$pid/task/*; do
            echo "    thread ${thread##*/}: $(awk '{ print $3 }' "$thread/stat"), in $(cat "$thread/wchan"), syscall $(cat "$thread/syscall")"
        done
    done
    "$doctor" --trace "$WEFT_TRACE"
}

run() {
    set -- -np 3 "$program" "$place" "$fault" "${COMMUNICATOR:-flat}" "$rank"
    { for _ in $(seq 60); do sleep 1; done && describe; } >"$log.late" 2>&1 </dev/null &
    late=$!
    WEFT_MARK=$mark timeout -k 1 90 "$mpiexec" "$@" </dev/null >"$log" 2>&1
    code=$?
    kill $late 2>/dev/null
    return $code
}

# One of the others waits in two calls, for a step in each.
both() {
    "$doctor" --trace "$WEFT_TRACE" >>"$log"
    awk '/^rank/ { first = /in flat\(f32.*, wait(s|ed) for: / } first && /^    and (was )?in allreduce\(.*, wait(s|ed) for: / { found = 1 }
        END { exit !found }' "$log"
}

job() {
    export TEST_TIMEOUT_MS=4000
    [ "$place" != start ] || export WEFT_TIMEOUT_MS=4000
    mark="deaths-$$-$place-$fault-$rank"
    limit=9 busy=40 # seconds; busy: what the machine may be late
    log=$work/$mark
    export WEFT_TRACE=$log.traces
    ulimit -c 0
    run && fail "the code is 0"
    end=$(date +%s.%N)
    took=$(awk -v end="$end" '$1 == "fault" { printf "%.1f", end - $2 }' "$log")
    [ -n "$took" ] || fail "there was no fault"
    awk -v took="$took" -v most=$((limit + busy)) 'BEGIN { exit !(took <= most) }' || fail "it took $took s"
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -n "$(left)" ] || break
        sleep 0.2
    done
    [ -z "$(left)" ] || fail "processes remain: $(left)"
    case $fault$place in
    exitshutdown) ;; # a launcher need not say that a program which has ended in order returned 1, and MPICH's does not
    stop*) grep -Eq "waited [0-9]+ ms for (rank [0-2]|its GPU) |weft: rank [0-9]: .*the process ends|not all ranks do" "$log" ;;
    *) grep -Eq "signal|has been aborted|Exit code|weft: rank" "$log" ;;
    esac || fail "no message"
    [ "$fault$place" != stopforward ] || "$doctor" --trace "$WEFT_TRACE" | grep "^rank $rank is behind" >>"$log" ||
        fail "the flight recorders do not say who is behind"
    [ "$fault$place" != stopforward ] || "$doctor" --trace "$WEFT_TRACE" |
        grep -E "allreduce.*, wait(s|ed) for: (receive|send) [0-9]+ bytes (from|of)" >>"$log" ||
        fail "the flight recorders do not say for which step the others waited"
    [ "$fault$place" != stoptwo ] || both || fail "the flight recorders do not say for which steps both calls waited"
    [ "$fault$place" != killreduction ] || "$doctor" --trace "$WEFT_TRACE" | grep "^rank $rank .*, gone): .* allreduce" \
        >>"$log" || fail "the flight recorders do not say where the rank was killed"
    [ "$fault$place" != leavemessage ] || grep -q "for rank $rank, whose program has ended, in recv(" "$log" ||
        fail "the others do not know that it has left"
    echo "$took" >"$log.took"
}

if [ "$1" = --job ]; then
    work=$2 mpiexec=$3 program=$4 doctor=$5 place=$6 fault=$7 rank=$8
    job
else
    mpiexec=$1 program=$2 doctor=$3
    shift 3
    all "$@"
fi
