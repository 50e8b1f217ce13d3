#!/bin/sh
# The launcher is killed: its ranks must end too. tests/comm/deaths_launcher.sh MPIEXEC PROGRAM (tests/comm/deaths.c).
set -u
mpiexec=$1 program=$2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
mark=launcher-$$

left() {
    grep -lzxF "WEFT_MARK=$mark" /proc/[0-9]*/environ 2>/dev/null | tr -dc '0-9\n'
}

fail() {
    echo "FAIL: $1"
    cat "$log"
    kill -KILL $(left) 2>/dev/null
    exit 1
}

WEFT_MARK=$mark "$mpiexec" -np 3 "$program" loop none </dev/null >"$log" 2>&1 &
launcher=$!
for _ in $(seq 300); do
    [ "$(grep -c loop "$log")" -lt 3 ] || break
    sleep 0.1
done
[ "$(grep -c loop "$log")" = 3 ] || fail "the job does not start"
kill -KILL $launcher
for _ in $(seq 100); do
    [ -n "$(left)" ] || break
    sleep 0.1
done
[ -z "$(left)" ] || fail "processes remain: $(left)"
