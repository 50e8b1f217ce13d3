# Writes the linker's version script of the shared library: what the headers on the command line declare is exported, all
# else stays inside.
#     awk -v version=WEFT_0.1 -f statements.awk -f exports.awk HEADER... > weft.map

function directive(line)
{
}

# The name that a statement at file level declares, if it is an object with external linkage.
function statement(declaration, body, name)
{
    gsub(/[ \t]+/, " ", declaration)
    sub(/^ /, "", declaration)
    sub(/^WF_[A-Z_]+ /, "", declaration)
    if (declaration ~ /^(typedef|static|struct|enum|union) / && declaration !~ /^struct [a-z_]+ \*?wf_[a-z0-9_]+\(/)
        return
    if (match(declaration, /wf_[a-z0-9_]+\(/))
        names[substr(declaration, RSTART, RLENGTH - 1)] = 1
    else if (declaration ~ /^(extern|wf_[a-z0-9_]+_fn) /) {
        sub(/^(extern( const)? [a-z0-9_]+|wf_[a-z0-9_]+_fn) /, "", declaration)
        count = split(declaration, list, /[ ,*]+/)
        for (i = 1; i <= count; i++)
            if (match(list[i], /^wf_[a-z0-9_]+/))
                names[substr(list[i], RSTART, RLENGTH)] = 1
    }
}

END {
    read_statements()
    print version " {\nglobal:"
    fflush()
    for (name in names)
        print "    " name ";" | "sort"
    close("sort")
    print "local:\n    *;\n};"
}
