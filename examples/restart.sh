#!/bin/sh
# Starts a program again until it is done:
#
#     examples/restart.sh mpirun -np 4 build/examples/dcgan_cifar --snapshot-every 500 --resume auto
#
# Code 0 is the end. After code 85 the program has saved because a signal asked for it, and after any other code it has
# failed (86: a signal asked for it, and the save failed); either way it goes on from its newest checkpoint. It ends after RESTARTS failures (default 10), with their code.
# TERM and INT to this script let the program save, and end both.
set -u
failures=0 asked=

# The launcher forwards USR1 to all ranks.
stop() {
    asked=1
    kill -USR1 "$launcher" 2>/dev/null
}
trap stop TERM INT
# A launcher that gets TERM or INT itself gives the ranks this time to save; it also waits so long after any code but 0.
export OMPI_MCA_odls_base_sigkill_timeout=${OMPI_MCA_odls_base_sigkill_timeout-10}
export PRTE_MCA_odls_base_sigkill_timeout=${PRTE_MCA_odls_base_sigkill_timeout-10}

while [ -z "$asked" ]; do
    "$@" &
    launcher=$!
    code=0
    wait "$launcher" || code=$?
    while [ "$asked" ] && kill -0 "$launcher" 2>/dev/null; do # a signal ended the wait, not the launcher
        code=0
        wait "$launcher" || code=$?
    done
    [ $code -ne 0 ] || exit 0
    [ -z "$asked" ] || exit $code
    if [ $code -ne 85 ]; then
        failures=$((failures + 1))
        echo "restart.sh: code $code, failure $failures of at most ${RESTARTS:-10}" >&2
        [ $failures -lt "${RESTARTS:-10}" ] || exit $code
    fi
done
exit 85
