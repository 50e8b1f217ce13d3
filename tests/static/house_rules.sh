#!/bin/sh
# Rules of the house that a compiler does not know. Prints what breaks them; the exit code tells.
#     tests/static/house_rules.sh           check this tree
#     tests/static/house_rules.sh --self    make up trees with one fault each, and check that each is found
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
failed=0

# Names of static functions that three files of the library or more share. Lower it after a rename; never raise it.
shared_names=18

say() {
    if [ -n "$2" ]; then
        printf '%s\n%s\n' "$1" "$2"
        failed=1
    fi
}

# check SHARED_NAMES: the tree in the working directory
check() {
    library=$(find core comm layers optim datasets fit -name '*.[ch]' -o -name '*.cu')
    all="$library $(find examples tests -name '*.[ch]' -o -name '*.sh' -o -name '*.awk' -o -name '*.py')"
    worded="$all $(find core comm layers optim datasets fit examples tests tools cmake CMakeLists.txt -name '*.cmake' -o -name CMakeLists.txt)
        $(find tests -name '*.cpp') $(find tools cmake -name '*.[ch]' -o -name '*.sh' -o -name '*.py')"

    say "Files of more than 600 lines:" "$(wc -l $all | awk '$1 > 600 && $2 != "total"')"
    # core/status.c ends a program for WF_MUST, comm ends one whose peers are gone or silent.
    say "The library prints to stdout or exits:" \
        "$(grep -nE '(^|[^a-z_])(printf|puts|putchar|exit|_exit|abort)[ ]*\(' $library |
            grep -vE '^(core/status\.c|comm/(safety/watchdog|transport/[a-z_]*|process)\.c):' | grep -vE '^[^:]*:[0-9]*:[ ]*(/?\*|//)' || true)"
    # What lies above the transports asks for native transport: only names, which users read, the table of reducers, and
    # what says why ranks are not connected by it, or would have to be, tell them what that is.
    say "NCCL is named away from its transport and its choice:" \
        "$(grep -rniE nccl comm --include='*.[ch]' |
            grep -vE '^comm/(transport/(no_)?nccl\.c|engine/build_reducers\.c|collective/native_open\.c|guard/native\.c|names\.c|comm\.h):' || true)"
    # Programs run under any MPI: core/config.c has the table of launchers.
    say "An MPI or a launcher is named away from core/config.c:" \
        "$(grep -niE 'open ?mpi|mpich|ompi_|pmix_|pmi_|prte|hydra' $library | grep -v '^core/config\.c:' || true)"
    # Ranks of a communicator that is not the world have other numbers there. Files that are left out name ranks of
    # schedules without a communicator, of the world, or dimensions of a tensor.
    say "A message names a rank without WF_RANK (comm/comm_author.h):" \
        "$(grep -nE '"[^"]*\<ranks? (%|[0-9])' $(find comm layers optim datasets fit -name '*.c') | grep -vE '\<ranks? %s' |
            grep -vE '^comm/((engine/(agreed|build_call|step_text)|proof/(graph|price|print|simulate|verify))|file/dataset|mpi_setup|process|safety/(recorder|watchdog))\.c:' |
            grep -vE '^(datasets/idx|layers/(functions/[a-z_]*|multi_node_chain/steps|serial/(group_)?norm)|optim/checkpoint_stage)\.c:' || true)"
    say "Language, types and names:" "$(awk -v most="$1" -f "$here/house_rules.awk" $worded)"
}

# plant FILE LINE...: a file of the tree that is made up
plant() {
    file=$1
    shift
    printf '%s\n' "$@" >"$file"
}

# expect WORDS CASE: the tree is refused with these words, or, without words, passes; all planted files go
expect() {
    said=$(failed=0 && check 0 && exit $failed) && code=0 || code=$?
    if [ -z "$1" ]; then
        [ $code = 0 ] && [ -z "$said" ] || { echo "found where it is not: $2: $said" && wrong=1; }
    elif [ $code = 0 ] || ! echo "$said" | grep -q "$1"; then
        echo "not found: $2: $said" && wrong=1
    fi
    find . -name 'planted*' -exec rm {} +
}

self() {
    wrong=0
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cd "$work"
    mkdir core comm layers optim datasets fit examples tests tools cmake
    for folder in *; do
        plant "$folder/a.c" "/* One file of each folder. */" "int a;"
    done
    plant tests/a.cpp "// C++."
    plant CMakeLists.txt "# CMake."
    expect "" "a tree without faults"

    for word in Of Likewise So Whether Where Whoever Behind Nobody Here Those And Is "The same"; do
        plant core/planted.c "int a; /* $word it. */"
        expect "core/planted.c:1: a comment opens with \"$word\"" "$word in a comment at the end of a line"
    done
    plant layers/planted.h "/*" " * Whether it is." " */"
    expect "layers/planted.h:2: .*\"Whether\"" "an opener in the second line of a comment"
    plant optim/planted.c "int a; /* a */ int b; /* Likewise b */"
    expect "optim/planted.c:1: .*\"Likewise\"" "an opener in the second comment of a line"
    plant tests/planted.cpp "// Of it."
    expect "tests/planted.cpp:1: .*\"Of\"" "an opener in a comment of C++"
    plant tools/planted.sh "#!/bin/sh" "" "    # So it goes."
    expect "tools/planted.sh:3: .*\"So\"" "an opener in a comment of a shell file"
    plant cmake/planted.cmake "# Of it."
    expect "cmake/planted.cmake:1: .*\"Of\"" "an opener in a comment of CMake"
    plant CMakeLists.txt "# Likewise."
    expect "CMakeLists.txt:1: .*\"Likewise\"" "an opener in the list of CMake"
    plant CMakeLists.txt "# CMake."
    plant datasets/planted.c "/* All ranks agree," " * which Everybody" " * hears of. */"
    expect "datasets/planted.c:3: .*\"hears of\": should be learns of" "a phrase over two lines"
    plant examples/planted.py "# One" "# does likewise."
    expect "examples/planted.py:2: .*\"likewise\"" "a phrase in a comment of Python"
    plant core/planted.c "/* Offers a" " * Of two lines; is one of" " * likewise-named things' ends. */" \
        "const char *a = \"/* Of it */ // So\";" "int b; // A line" "// Of two lines"
    expect "core/planted.c:3: .*\"likewise\"" "a phrase in three lines"
    plant core/planted.c "/* Offers a" " * Of two lines. */" "const char *a = \"/* Of it */ // So\";" "int b; // A line" \
        "// Of two lines" "int c = 4 /* Is4 */ / 2;"
    plant tools/planted.sh "# A comment" "# Of two lines" "echo '# Of it'"
    expect "" "words that open no comment"

    plant core/planted.h "typedef struct wf_a {" "    int a;" "} wf_a;"
    plant optim/planted.h "typedef enum wf_a {" "    B" "} wf_a;"
    expect "the type wf_a is defined in .*core/planted.h.*: rename" "a type in two headers"
    plant core/planted.c "struct wf_a {" "};"
    plant optim/planted.c "typedef struct {" "} wf_a;"
    expect "the type wf_a is defined in" "a public type in two sources"
    plant core/planted.h "struct a {" "};"
    plant optim/planted.c "struct a {" "};"
    expect "the type a is defined in" "a type of a header in a source"
    plant core/planted.h "typedef struct wf_a wf_a;" "struct b *a(void);"
    plant core/planted.c "struct wf_a {" "};" "typedef struct b {" "} b;"
    plant comm/planted.c "typedef struct b {" "} b;" "typedef struct wf_a wf_a;"
    expect "" "a type that is declared often, and a private one of two sources"

    for folder in core comm layers; do
        plant $folder/planted.c "static int a(int b," "             int c)" "{" "}"
    done
    expect "1 names .* should be 0 at most.*" "a name of three static functions"
    for folder in core comm layers; do
        plant $folder/planted.c "static int a(int b);" "static const int c[] = {f(1)};" "int a(int b)" "{" "}"
    done
    plant core/planted2.c "static int d(void)" "{" "}"
    plant comm/planted2.c "static int d(void)" "{" "}"
    expect "" "three declarations, and a name of two static functions"

    plant core/planted.c "int main(void) { printf(\"a\"); }"
    expect "prints to stdout" "printf"
    plant comm/planted.c "int a; /* NCCL */"
    expect "NCCL is named" "NCCL"
    for word in "OpenMPI 4" "Open MPI" MPICH OMPI_X PMIX_RANK; do
        plant comm/planted.c "int a; /* seen with $word */"
        expect "An MPI or a launcher is named" "$word"
    done
    plant core/config.c 'int a; /* OMPI_ */'
    expect "" "an MPI in the table of launchers"
    rm core/config.c
    plant layers/planted.c 'const char *a = "rank %d is late";'
    expect "names a rank without WF_RANK" "a rank's own number"
    awk 'BEGIN { for (i = 0; i < 601; i++) print "int a;" }' >core/planted.c
    expect "more than 600 lines" "a long file"
    return $wrong
}

case ${1-} in
--self) self ;;
*) check $shared_names && exit $failed ;;
esac
