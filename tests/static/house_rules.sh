#!/bin/sh
# Rules of the house that a compiler does not know. Prints what breaks them; the exit code tells.
set -eu
cd "$(dirname "$0")/../.."
failed=0

say() {
    if [ -n "$2" ]; then
        printf '%s\n%s\n' "$1" "$2"
        failed=1
    fi
}

library=$(find core comm layers optim datasets -name '*.[ch]' -o -name '*.cu')
all="$library $(find examples tests -name '*.[ch]' -o -name '*.sh' -o -name '*.awk' -o -name '*.py')"

say "Files of more than 600 lines:" "$(wc -l $all | awk '$1 > 600 && $2 != "total"')"
# core/status.c ends a program for WF_MUST, comm ends one whose peers are gone or silent.
say "The library prints to stdout or exits:" \
    "$(grep -nE '(^|[^a-z_])(printf|puts|putchar|exit|_exit|abort)[ ]*\(' $library |
        grep -vE '^(core/status\.c|comm/(safety/watchdog|transport/[a-z_]*|process)\.c):' | grep -vE '^[^:]*:[0-9]*:[ ]*(/?\*|//)' || true)"
# What lies above the transports asks for native transport: only names, which users read, and the table of reducers tell
# them what that is.
say "NCCL is named away from its transport and its choice:" \
    "$(grep -rniE nccl comm --include='*.[ch]' |
        grep -vE '^comm/(transport/(no_)?nccl\.c|engine/build_reducers\.c|names\.c|comm\.h):' || true)"
exit $failed
