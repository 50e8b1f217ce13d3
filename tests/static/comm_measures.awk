# For tests/static/comm_measures.sh: measures of how often comm describes one communication, from the files that are
# named, whose paths are those from the root. Prints one line for each measure, "NAME VALUE".

BEGIN {
    # The descriptions of one communication between a caller and the wire. Six are wanted: bucket, call, schedule with
    # its binding, step, transfer and the transport's request, which is no type of the library.
    n = split("wf_bucket wf_reduce_job wf_call wf_call_record wf_call_item wf_engine_call " \
        "wf_engine_entry wf_binding wf_step wf_flight wf_transfer wf_native_part wf_exchange_form", word, " ")
    for (i = 1; i <= n; i++)
        form[word[i]] = 1
}

# Removes comments and strings of a line; `block` says if the next line begins in a comment.
function code_of(line,    start, stop, out) {
    gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
    out = ""
    while (line != "") {
        if (block) {
            stop = index(line, "*/")
            if (!stop)
                return out
            line = substr(line, stop + 2)
            block = 0
            continue
        }
        start = index(line, "/*")
        if (!start)
            return out line
        out = out substr(line, 1, start - 1)
        line = substr(line, start + 2)
        block = 1
    }
    return out
}

# Names that one declaration of a struct has: "int a, *b[2];" has two.
function fields_of(line,    i, depth, n, c) {
    if (line !~ /;/)
        return 0
    n = 1
    for (i = 1; i <= length(line); i++) {
        c = substr(line, i, 1)
        depth += c ~ /[[(]/ ? 1 : c ~ /[])]/ ? -1 : 0
        if (c == "," && depth == 0)
            n++
    }
    return n
}

FNR == 1 {
    block = 0
    c_file = FILENAME ~ /\.(c|cu)$/
    in_comm = FILENAME ~ /^comm\//
    counted = in_comm && FILENAME !~ /^comm\/(proof|file)\//
    above = counted && c_file && FILENAME !~ /^comm\/transport\// && FILENAME !~ /native/
    in_struct = 0
}

{
    was = block
    code = code_of($0)
    if (counted)
        lines++
    if (c_file && $0 !~ /^[ \t]*$/) {
        written++
        if (code ~ /^[ \t]*$/ && (was || $0 ~ /\/\*/))
            commented++
    }
    if (above && (code ~ /(^|[^A-Za-z0-9_])native([^A-Za-z0-9_]|$)/ || code ~ /wf_(call_stays|native_takes_tensor)\(/))
        asks++
    if (match(code, /^(typedef )?struct [A-Za-z_0-9]+ \{/)) {
        name = code
        sub(/^(typedef )?struct /, "", name)
        sub(/ .*/, "", name)
        if (name in form && !(name in seen)) {
            seen[name] = 1
            forms++
        }
        in_struct = name == "wf_comm"
        next
    }
    if (code ~ /^\}/)
        in_struct = 0
    if (in_struct)
        fields += fields_of(code)
}

END {
    print "lines_that_ask_for_native", asks + 0
    print "forms_of_a_communication", forms + 0
    print "fields_of_wf_comm", fields + 0
    print "lines_of_comm", lines + 0
    print "comments_per_mille", int(1000 * commented / (written ? written : 1))
}
