# What a run of ctest says of each test, for tools/test.sh: awk -v csv=FILE -f test.awk DEFINITIONS TIMES RESULTS
# DEFINITIONS are the CTestTestfile.cmake of a build, TIMES the table of earlier runs, RESULTS the JUnit file of this one. Writes
# the rows of the table, without its head, to csv, and prints "a, b (reason); c (reason)" of the tests that did not run.
function property(name, value) {
    if (!match($0, " " name " \"[^\"]*\""))
        return ""
    value = substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 4)
    gsub(/;/, " ", value)
    return value
}

function attribute(name) {
    if (!match($0, " " name "=\"[^\"]*\""))
        return ""
    return plain(substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 4))
}

function plain(text) {
    gsub(/&lt;/, "<", text)
    gsub(/&gt;/, ">", text)
    gsub(/&quot;/, "\"", text)
    gsub(/&apos;/, "'", text)
    gsub(/&amp;/, "\\&", text)
    return text
}

FILENAME == "-" {
    if (match($0, /^(add_test|set_tests_properties)\(\[=*\[[^]]*/)) {
        name = substr($0, RSTART, RLENGTH)
        sub(/^[a-z_]*\(\[=*\[/, "", name)
    } else if (match($0, /^(add_test|set_tests_properties)\([^ )]*/)) {
        name = substr($0, RSTART, RLENGTH)
        sub(/^[a-z_]*\(/, "", name)
    } else
        next
    known[name] = 1
    if (/^set_tests_properties/) {
        processors[name] = property("PROCESSORS")
        label[name] = property("LABELS")
    }
    next
}

FILENAME == ARGV[2] {
    split($0, field, ",")
    if (FNR > 1)
        row[field[1]] = $0
    next
}

/^\t<testcase / {
    test = attribute("name")
    seconds = attribute("time")
    status = attribute("status")
    reason = status == "disabled" ? "disabled" : ""
}
/^\t\t<skipped / { message = attribute("message") }
status == "notrun" && reason == "" && match($0, /(SKIP|skipped): /) { reason = plain(substr($0, RSTART + RLENGTH)) }
/^\t<\/testcase>/ {
    result = status == "run" ? "passed" : status == "fail" ? "failed" : message ~ /^SKIP_/ ? "skipped" : "not run"
    if (status == "notrun" && reason == "")
        reason = message ~ /^SKIP_/ ? "no reason given" : message
    if (reason != "") {
        sub(/<\/system-out>.*/, "", reason)
        if (!(reason in names))
            order[++reasons] = reason
        names[reason] = names[reason] (names[reason] == "" ? "" : ", ") test
    }
    row[test] = sprintf("%s,%.2f,%s,%s,%s", test, seconds, processors[test] == "" ? 1 : processors[test], label[test], result)
    status = ""
}

END {
    for (test in row)
        if (test in known)
            print row[test] >csv
    close(csv)
    for (i = 1; i <= reasons; i++)
            printf "%s%s (%s)", (i > 1 ? "; " : ""), names[order[i]], order[i]
}
