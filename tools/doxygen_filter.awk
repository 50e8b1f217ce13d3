# Doxygen's input filter: Weft's headers have plain comments, which this makes documentation.
#     awk -f tools/doxygen_filter.awk HEADER
# - The first comment of a file documents the file; a comment after code on its line documents what stands before it.
# - A comment before several functions in a row that take and return the same documents each of them.
# - Indented lines of a comment (tables, examples) stay as they are.
# Markdown files pass through unchanged.

function escaped(line)
{
    gsub(/[\\@#<>%]/, "\\\\&", line)
    gsub(/"/, "\\\"", line)
    sub(/^\./, "\\.", line)
    return line
}

# The body of a comment, line by line, as documentation; `open` is how it begins.
function document(open, count, list, i, line, raw, out)
{
    count = split(comment, list, "\n")
    out = open
    raw = 0
    for (i = 1; i <= count; i++) {
        line = list[i]
        if (i > 1)
            sub(/^[ \t]*\*( |$)/, "", line)
        else
            sub(/^ /, "", line)
        if (!raw && list_gap && line ~ /^  +[^ ]/) {
            out = out "\n@verbatim"
            raw = 1
        } else if (raw && line !~ /^(  |[ \t]*$)/) {
            out = out "\n@endverbatim"
            raw = 0
        }
        list_gap = line ~ /^[ \t]*$/ || line ~ /:[ \t]*$/
        out = out (i == 1 ? " " : "\n") (raw ? line : escaped(line))
    }
    list_gap = 0
    return out (raw ? "\n@endverbatim\n*/" : " */")
}

function finish(before)
{
    if (comment ~ /^ *---/) { # the title of a part of the header
        shared = ""
        if (comment !~ /-- *$/ || before != "")
            print before
        return
    }
    if (before ~ /[^ \t]/) {
        print before " " document("/**<")
        return
    }
    if (!first_done) {
        first_done = 1
        print document("/** @file\n")
        return
    }
    shared = depth == 0 ? document("/**") : ""
    print before document("/**")
    fresh = 1
}

FILENAME ~ /\.md$/ { print; next }

in_comment {
    if (at = index($0, "*/")) {
        comment = comment "\n" substr($0, 1, at - 1)
        in_comment = 0
        finish(before)
    } else
        comment = comment "\n" $0
    next
}

{
    line = $0
    if (at = index(line, "/*")) {
        before = substr(line, 1, at - 1)
        count_depth(before)
        rest = substr(line, at + 2)
        if (end = index(rest, "*/")) {
            comment = substr(rest, 1, end - 1)
            after = substr(rest, end + 2)
            finish(before)
            if (after ~ /[^ \t]/)
                print after
        } else {
            comment = rest
            in_comment = 1
        }
        next
    }
    if (line ~ /^[ \t]*$/ || line ~ /^#/)
        shared = ""
    else if (shared != "" && depth == 0 && fresh)
        alike = signature(line)
    else if (shared != "" && depth == 0 && !unfinished && line ~ /^[a-z]/) {
        if (alike == signature(line))
            print shared
        else
            shared = ""
    }
    if (line !~ /^[ \t]*$/)
        fresh = 0
    unfinished = depth == 0 && line !~ /[;}][ \t]*$/
    count_depth(line)
    if (depth > 0 && line !~ /extern "C"/)
        shared = ""
    print line
}

# A declaration without the name of its function.
function signature(line)
{
    sub(/wf_[a-z0-9_]+\(/, "(", line)
    return line
}

function count_depth(line)
{
    if (line ~ /extern "C"/ || cxx_end)
        cxx_end = 0
    else
        depth += gsub(/\{/, "{", line) - gsub(/\}/, "}", line)
    if (line ~ /#ifdef __cplusplus/)
        cxx_end = 1
}
