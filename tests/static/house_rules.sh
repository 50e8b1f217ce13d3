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
# NCCL is its transport's, and of those that choose between it and messages: names, the table of reducers, and who opens
# it. Comments may speak of it anywhere.
transport='collective/(nccl[a-z_]*|no_nccl|native|outbox_native)\.[ch]|nccl_author\.h|reduce/(reducer_nccl\.c|reduce_impl\.h)'
choice='comm_impl\.h|names\.c|open\.c|engine/build_reducers\.c|mesh/exchange(_way)?\.c|collective/buffer\.c|reduce/sum\.c'
say "NCCL is named away from its transport and its choice:" \
    "$(for file in $(find comm -name '*.[ch]' | grep -vE "^comm/($transport|$choice)$"); do
        sed 's@/\*.*@@; s@^ *\*.*@@' "$file" | grep -niE nccl | sed "s@^@$file:@" || true
    done)"
exit $failed
