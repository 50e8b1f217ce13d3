#!/bin/sh
# No kernel keeps more than 64 bytes a thread on the stack, which is memory: tests/static/stack.sh FOLDER SOURCE...
# FOLDER has what ptxas said of each source when it was compiled (cmake/stack.sh).
set -u
folder=$1
shift
most=64
failed=0
for source; do
    said=$folder/$source.o.ptxas
    kernels=$(grep -c 'bytes stack frame' "$said" 2>/dev/null || true)
    if [ "${kernels:-0}" = 0 ]; then
        echo "$source: ptxas has said nothing of its kernels: build again"
        failed=1
        continue
    fi
    echo "$source: $kernels kernels"
    awk -v most=$most -v source="$source" '
        /Function properties for/ { name = $NF }
        /bytes stack frame/ && $1 > most { print source ": " name " has " $1 " bytes of stack, the most is " most; bad = 1 }
        END { exit bad }' "$said" || failed=1
done
exit $failed
