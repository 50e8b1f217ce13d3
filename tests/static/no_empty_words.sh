#!/bin/sh
# No command of a build has an empty word, as an empty option or launcher leaves: no_empty_words.sh SOURCE BUILD
# With --self: this script finds them.
set -u
empty_words() {
    grep -nE "^  *(COMMAND|command|LAUNCHER|[A-Z_]*FLAGS|[A-Z_]*LIBRARIES) = .*(^| )(\"\"|'')( |\$)" "$1" | cut -c1-200
}

if [ "$1" = --self ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    printf '  command = sh cmake/stack.sh "" nvcc -c a.cu\n  command = cc -c a.c ""\n  command = cc -DX="" a.c\n' >"$work/ninja"
    [ "$(empty_words "$work/ninja" | wc -l)" = 2 ] || { echo "finds: $(empty_words "$work/ninja")" && exit 1; }
    exit 0
fi
failed=0
for file in "$2/build.ninja" "$2/CMakeFiles/rules.ninja"; do
    [ -s "$file" ] || { echo "$file: should be there" && exit 1; }
    ! empty_words "$file" | grep . || failed=1
done
said=$("$1/cmake/stack.sh" "" cc -o nothing 2>&1) && echo "cmake/stack.sh takes an empty word" && failed=1
[ "$said" = "stack.sh: the first word of the command is empty: should be a compiler or its launcher" ] ||
    { echo "cmake/stack.sh says: $said" && failed=1; }
exit $failed
