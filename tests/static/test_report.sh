#!/bin/sh
# tools/test.sh names every test that ctest did not run and why, and keeps a table of times: test_report.sh TOOLS
set -u
tools=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
complain() {
    echo "$*"
    failed=1
}

cat >"$work/CTestTestfile.cmake" <<'END'
add_test(told "sh" "-c" "echo 'SKIP: no <b> & c here'; exit 77")
set_tests_properties(told PROPERTIES LABELS "long;net" SKIP_RETURN_CODE "77")
add_test([=[also]=] "sh" "-c" "echo more; echo 'SKIP: no <b> & c here'; exit 77")
set_tests_properties([=[also]=] PROPERTIES SKIP_RETURN_CODE "77")
add_test(untold "sh" "-c" "exit 77")
set_tests_properties(untold PROPERTIES SKIP_RETURN_CODE "77" PROCESSORS "3")
add_test(by_words "echo" "skipped: this build has none")
set_tests_properties(by_words PROPERTIES SKIP_REGULAR_EXPRESSION "skipped: ")
add_test(gone "/nowhere/program")
add_test(off "true")
set_tests_properties(off PROPERTIES DISABLED "TRUE")
add_test(good "true")
add_test(bad "false")
add_test(slow "sleep" "0.1")
END

# last WANT CTEST-OPTION...: the last line, up to what is left to others.
last() {
    want=$1
    shift
    got=$("$tools/test.sh" "$work" "$@" 2>/dev/null | tail -n 1)
    [ "${got%%. Left to make check: 1 tests*}" = "Skipped: $want" ] || complain "the last line is: $got; should begin: Skipped: $want"
}
last "told, also (no <b> & c here); untold (no reason given); by_words (this build has none); gone (Unable to find executable); off (disabled)"
got=$(sed 's/,[0-9]*\.[0-9]*,/,S,/' "$work/test-times.csv" | LC_ALL=C sort | paste -sd ' ')
want="also,S,1,,skipped bad,S,1,,failed by_words,S,1,,skipped gone,S,1,,not run good,S,1,,passed off,S,1,,not run"
want="$want slow,S,1,,passed test,seconds,processors,label,result told,S,1,long net,skipped untold,S,3,,skipped"
[ "$got" = "$want" ] || complain "the table has: $got"
sed 1d "$work/test-times.csv" | cut -d, -f2 | sort -c -r -n || complain "the slowest is not first: $(cat "$work/test-times.csv")"

# A part of the tests leaves the other rows; a test that is gone leaves none.
sed -i '/(bad/d' "$work/CTestTestfile.cmake"
last none -R good
[ "$(wc -l <"$work/test-times.csv")" = 9 ] || complain "after a part the table has: $(cat "$work/test-times.csv")"
"$tools/test.sh" "$work" -R gone >/dev/null 2>&1 && complain "a test that is not there is no failure"
exit $failed
