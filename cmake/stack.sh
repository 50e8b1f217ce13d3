#!/bin/sh
# Compiles a .cu file and keeps what ptxas says of its kernels: cmake/stack.sh COMPILER... -o OBJECT ...
# With -Xptxas=-v ptxas prints the registers and stack of each kernel: they go to OBJECT.ptxas, which the test static_stack
# reads; everything else is printed.
set -u
[ -n "${1-}" ] || { echo "stack.sh: the first word of the command is empty: should be a compiler or its launcher" >&2 && exit 2; }
object=""
previous=""
for word; do
    [ "$previous" != -o ] || object=$word
    previous=$word
done
said=$object.ptxas.tmp
"$@" 2>"$said"
code=$?
grep -vE '^ptxas info|^ +[0-9]+ bytes stack frame' "$said" >&2
grep -E '^ptxas info|^ +[0-9]+ bytes stack frame' "$said" >"$object.ptxas"
rm -f "$said"
exit $code
