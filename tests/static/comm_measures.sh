#!/bin/sh
# Measures how often comm describes one communication and where it decides how that travels; fails if a measure is worse
# than its limit. Circles of calls are measured by call_arrows.sh, language and names of statics by house_rules.sh.
#     tests/static/comm_measures.sh           measure this tree
#     tests/static/comm_measures.sh --self    make up trees with one fault each, and check that each is found
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."

# Limits: what the tree has now, and behind it what is wanted. Lower one after a change; never raise it.
most_asks=5       # 5: lines outside of transports and native files that ask for the native transport
most_forms=6      # 6: structs that describe one communication
most_fields=30    # 30: of struct wf_comm
most_lines=14962  # 12500: of comm without its proof and its files
least_comments=88 # 90: lines of comments in a thousand written lines of .c and .cu, of the whole library

check() {
    awk -f "$here/comm_measures.awk" $(find core comm layers optim datasets fit -name '*.[ch]' -o -name '*.cu') |
        awk -v asks=$most_asks -v forms=$most_forms -v fields=$most_fields -v lines=$most_lines \
            -v comments=$least_comments '
        BEGIN {
            most["lines_that_ask_for_native"] = asks
            most["forms_of_a_communication"] = forms
            most["fields_of_wf_comm"] = fields
            most["lines_of_comm"] = lines
            least["comments_per_mille"] = comments
        }
        { print $1 ": " $2 }
        $1 in most && $2 > most[$1] { print "  should be " most[$1] " at most"; failed = 1 }
        $1 in least && $2 < least[$1] { print "  should be " least[$1] " at least"; failed = 1 }
        END { exit failed }'
}

# plant FILE LINE...: a file of the tree that is made up
plant() {
    file=$1
    shift
    printf '%s\n' "$@" >"$file"
}

# expect MEASURE VALUE CASE: the tree has this measure, and is refused if its limit is one less
expect() {
    said=$(check) && code=0 || code=$?
    if ! echo "$said" | grep -q "^$1: $2\$"; then
        echo "not measured: $3: $said" && wrong=1
    elif [ $code = 0 ]; then
        echo "not refused: $3: $said" && wrong=1
    fi
}

self() {
    wrong=0
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cd "$work"
    mkdir -p core comm/transport comm/proof layers optim datasets fit
    most_asks=1 most_forms=1 most_fields=3 most_lines=11 least_comments=0
    plant comm/transport/native.c "int native;" "int a = native;"
    plant comm/proof/a.c "int a;" "int b;" "int c;"
    plant comm/a.c "/* asks for native */" 'const char *why = "no native";' "int wf_native_send(void);" \
        "int b = comm->native;"
    plant comm/a.h "struct wf_comm {" "    int a, b[2];" "    int (*c)(int, int); /* ; */" "};"
    check >/dev/null || { echo "a tree without faults is refused" && wrong=1; }
    most_asks=0
    expect lines_that_ask_for_native 1 "a line that asks for the native transport"
    most_asks=1 most_fields=2
    expect fields_of_wf_comm 3 "fields of a communicator"
    most_fields=3
    plant comm/b.h "typedef struct wf_call {" "} wf_call;" "struct wf_step {" "};"
    most_lines=14
    expect forms_of_a_communication 2 "two forms of a communication"
    rm comm/b.h
    most_lines=9
    expect lines_of_comm 10 "lines of comm"
    most_lines=11 least_comments=112
    expect comments_per_mille 111 "comments"
    return $wrong
}

case ${1-} in
--self) self ;;
*) check ;;
esac
