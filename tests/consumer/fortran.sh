#!/bin/sh
# The Fortran module, as it is installed: it has every function that the C compiler finds in weft.h, its structs have C's
# sizes and offsets, and examples/advection.f90, compiled with pkg-config, trains and solves on one, two and three ranks alike:
#     tests/consumer/fortran.sh CMAKE BUILD CC MPIFORT MPIEXEC
set -eu
cmake=$1 build=$2 cc=$3 fortran=$4 mpiexec=$5
tree=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/prefix" >"$work/install.log"
module=$work/prefix/share/weft/weft.f90
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name weft-fortran.pc)")
export PKG_CONFIG_PATH LD_LIBRARY_PATH="$work/prefix/lib"
flags=$(pkg-config --cflags weft)
links=$(pkg-config --libs weft-fortran)
modules=$(pkg-config --cflags weft-fortran)

if command -v gcc >/dev/null; then
    echo '#include <weft/weft.h>' | gcc -std=c11 -DWF_LIBRARY $flags -fsyntax-only -aux-info "$work/prototypes" -x c -
    sed -n 's/^.* \*\/ extern [^(]*[ *]\(wf_[a-z0-9_]*\) (.*/\1/p' "$work/prototypes" | sort -u >"$work/wanted"
    [ "$(wc -l <"$work/wanted")" -gt 300 ] || { echo "only $(wc -l <"$work/wanted") functions were found in weft.h" && exit 1; }
    sed -n "s/^      bind(c, name='\(.*\)')/\1/p; s/^! \(wf_[a-z0-9_]*\)\$/\1/p" "$module" | sort >"$work/there"
    lacking=$(comm -23 "$work/wanted" "$work/there")
    [ -z "$lacking" ] || { echo "functions of weft.h that weft.f90 lacks:" $lacking && exit 1; }
fi

(cd "$work/prefix/include" && find weft -name '*.h' ! -name '*_author.h' ! -path 'weft/core/cuda/*') |
    sed 's/.*/#include <&>/' >"$work/headers.h"
# Two programs that print the same lines: type, component, where it begins; and the size of the type.
awk -v c="$work/layout.c" -v f="$work/layout.f90" '
    BEGIN {
        print "#include \"headers.h\"\n#include <stddef.h>\n#include <stdio.h>\nint main(void)\n{" >c
        print "program layout\n  use weft" >f
    }
    /^  type, bind\(c\)/ { type = $NF; print "  type(" type "), target :: x_" type >f }
    /^  end type/ { type = "" }
    type && /^    / && match($0, /:: [a-z_0-9]+/) {
        component = substr($0, RSTART + 3, RLENGTH - 3)
        printf "printf(\"%s %s %%zu\\n\", offsetof(%s, %s));\n", type, component, type, component >c
        at = at sprintf("  print \"(3a, i0)\", \"%s\", \" %s\", \" \", &\n    transfer(c_loc(x_%s%%%s), 0_c_int64_t) - transfer(c_loc(x_%s), 0_c_int64_t)\n",
            type, component, type, component, type)
        if (!(type in sized))
            at = at sprintf("  print \"(2a, i0)\", \"%s\", \" \", c_sizeof(x_%s)\n", type, type)
        if (!(type in sized))
            printf "printf(\"%s %%zu\\n\", sizeof(%s));\n", type, type >c
        sized[type] = 1
    }
    END { print "return 0;\n}" >c; print at "end program" >f }' "$module"
"$cc" -std=c11 -DWF_LIBRARY $flags "$work/layout.c" -o "$work/layout_c"
"$fortran" -std=f2018 -ffree-line-length-none $modules "$work/layout.f90" -o "$work/layout_f" $links
"$work/layout_c" | sort >"$work/layout_c.txt"
"$work/layout_f" | sort >"$work/layout_f.txt"
[ "$(wc -l <"$work/layout_c.txt")" -gt 300 ] || { echo "only $(wc -l <"$work/layout_c.txt") components were found" && exit 1; }
diff "$work/layout_c.txt" "$work/layout_f.txt" || { echo "above: structs of C (<) and of Fortran (>)" && exit 1; }

"$fortran" -std=f2018 -Wall -Werror $modules "$tree/examples/advection.f90" -o "$work/advection" $links
for ranks in 1 2 3; do
    "$mpiexec" -np "$ranks" "$work/advection" --steps 200 >"$work/out" 2>"$work/said" || { cat "$work/out" "$work/said" && exit 1; }
    grep '^error after' "$work/out" >"$work/error_$ranks" || { cat "$work/out" && exit 1; }
    diff "$work/error_1" "$work/error_$ranks" || { echo "above: the errors of one rank (<) and of $ranks (>)" && exit 1; }
done
! "$work/advection" --steps no >"$work/out" 2>&1 || { echo "--steps no is taken" && exit 1; }
grep -q '^advection: --steps no: should be a positive number' "$work/out" || { cat "$work/out" && exit 1; }

cat >"$work/none.f90" <<'END'
program none
  use mpi
  use weft
  integer :: code
  call MPI_Init(code)
  if (c_associated(wf_comm_from_fortran(MPI_COMM_NULL, 'flat'//c_null_char, wf_ctx_opts()))) print *, 'a communicator'
  print '(a)', wf_string(wf_error_message())
  call MPI_Finalize(code)
end program
END
"$fortran" -std=f2018 -Wall -Werror $modules "$work/none.f90" -o "$work/none" $links
"$work/none" >"$work/out" 2>&1 || { cat "$work/out" && exit 1; }
grep -q 'MPI_COMM_NULL' "$work/out" && ! grep -q 'a communicator' "$work/out" || { cat "$work/out" && exit 1; }
