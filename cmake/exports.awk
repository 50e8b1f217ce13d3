# Writes the linker's version script of the shared library: what the headers on the command line declare is exported, all
# else stays inside.
#     awk -v version=WEFT_0.1 -f exports.awk HEADER... > weft.map
# Understands declarations as clang-format leaves them: one statement ends with a semicolon or with a braced body.

# Comments, then preprocessor lines and what C++ alone reads, then strings are taken away.
{
    line = $0
    while (1) {
        if (in_comment) {
            if (!(at = index(line, "*/")))
                next
            line = substr(line, at + 2)
            in_comment = 0
        }
        if (!(at = index(line, "/*")))
            break
        rest = substr(line, at + 2)
        line = substr(line, 1, at - 1)
        if (end = index(rest, "*/"))
            line = line " " substr(rest, end + 2)
        else {
            in_comment = 1
            text = text line " "
            next
        }
    }
    if (continued || line ~ /^[ \t]*#/) {
        continued = line ~ /\\$/
        if (line ~ /#[ \t]*ifdef[ \t]+__cplusplus/)
            cplusplus = 1
        else if (cplusplus && line ~ /#[ \t]*endif/)
            cplusplus = 0
        next
    }
    if (!cplusplus)
        text = text line " "
}

# The name that a statement at file level declares, if it is an object with external linkage.
function declared(statement, name)
{
    gsub(/[ \t]+/, " ", statement)
    sub(/^ /, "", statement)
    if (statement ~ /^(typedef|static|struct|enum|union) / && statement !~ /^struct [a-z_]+ \*?wf_[a-z0-9_]+\(/)
        return
    if (match(statement, /wf_[a-z0-9_]+\(/))
        names[substr(statement, RSTART, RLENGTH - 1)] = 1
    else if (statement ~ /^(extern|wf_[a-z0-9_]+_fn) /) {
        sub(/^(extern( const)? [a-z0-9_]+|wf_[a-z0-9_]+_fn) /, "", statement)
        count = split(statement, list, /[ ,*]+/)
        for (i = 1; i <= count; i++)
            if (match(list[i], /^wf_[a-z0-9_]+/))
                names[substr(list[i], RSTART, RLENGTH)] = 1
    }
}

END {
    depth = 0
    length_of = length(text)
    for (at = 1; at <= length_of; at++) {
        c = substr(text, at, 1)
        if (c == "{")
            depth++
        else if (c == "}" && --depth == 0 && statement ~ /^[ \t]*static /)
            statement = "" # the body of an inline function; that of a type is followed by a semicolon
        else if (depth == 0 && c == ";") {
            declared(statement)
            statement = ""
        } else if (depth == 0)
            statement = statement c
    }
    print version " {\nglobal:"
    fflush()
    for (name in names)
        print "    " name ";" | "sort"
    close("sort")
    print "local:\n    *;\n};"
}
