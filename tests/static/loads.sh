#!/bin/sh
# The kernels that move most bytes have as many loads in flight, and as few registers and calls, as their speed was
# reckoned with: tests/static/loads.sh MACHINE_CODE KNOWN_OBJECT FOLDER, which has the objects of core/cuda and beside each
# what ptxas said of it (cmake/stack.sh). The table is tests/static/loads.txt. With --print it shows all kernels instead.
set -u
show=""
[ "$1" != --print ] || { show=yes && shift; }
reader=$1 known=$2 folder=$3
here=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the reader says of kernels that are known.
"$reader" 90 "$known" >"$work/known" || exit 1
awk '$1 == "two_at_a_time" { two = $2 == 2 && $3 == 32 && $4 == 0 }
     $1 == "one_after_another" { one = $2 == 1 && $4 == 0 }
     $1 == "divides" { divides = $2 == 0 && $3 == 16 && $4 > 0 }
     END { exit !(two && one && divides) }' "$work/known" || {
    echo "the reader does not know this machine code: of kernels that are known it says"
    cat "$work/known"
    exit 1
}

for object in "$folder"/core/cuda/*.cu.o; do
    "$reader" 90 "$object" >"$work/code" 2>"$work/why" || { cp "$work/why" "$work/skip" && break; }
    sort "$work/code" >"$work/sorted"
    awk -F "'" '/Compiling entry function/ { name = $2; arch = $4 }
                /Used [0-9]+ registers/ && arch == "sm_90" { sub(/.*Used /, ""); sub(/ registers.*/, ""); print name, $0 }' \
        "$object.ptxas" | sort | join - "$work/sorted"
done | c++filt | sed 's/^void //; s/(sign)//g; s/(.*) \([0-9]* [0-9]* [0-9]* [0-9]* [0-9]*\)$/ \1/; s/__nv_bfloat16/bf16/g; s/__half/f16/g' |
    sort >"$work/all"
[ ! -e "$work/skip" ] || { echo "SKIP: $(cat "$work/skip")" && exit 0; }
# name registers loads bytes calls instructions
if [ -n "$show" ]; then
    cat "$work/all"
    exit
fi
[ -s "$work/all" ] || { echo "no kernel is found in $folder" && exit 1; }
awk '
    NR == FNR { if ($0 !~ /^#/ && NF) { split($0, part, / *\| */); at[++n] = part[1]; most[n] = part[2]; least[n] = part[3]; calls[n] = part[4] }
                next }
    { name = $0; sub(/( [0-9]+)+$/, "", name); registers[name] = $(NF - 4); loads[name] = $(NF - 3); called[name] = $(NF - 1) }
    END {
        for (i = 1; i <= n; i++) {
            k = at[i]
            if (!(k in registers)) { print k ": there is no such kernel"; bad = 1; continue }
            if (registers[k] > most[i]) { print k " has " registers[k] " registers, the most is " most[i]; bad = 1 }
            if (loads[k] < least[i]) { print k " has " loads[k] " loads in flight, the least is " least[i]; bad = 1 }
            if (called[k] > calls[i]) { print k " has " called[k] " calls, the most is " calls[i]; bad = 1 }
        }
        print n " kernels"
        exit bad || n == 0
    }' "$here/loads.txt" "$work/all"
