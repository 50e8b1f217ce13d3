# Writes calls of every function that weft.h declares, from the prototypes of gcc's -aux-info:
#     awk -f every_call.awk PROTOTYPES > every_call_table.h
# A parameter that points to one of the objects of every_call.c is that object where its bit in `given` is set; every
# other pointer is NULL, and every number, enumerator and structure is zero. Functions that take a format are left out.
BEGIN {
    count = split("ctx tensor var tape layer param optim dataset iter comm mesh", list, " ")
    for (i = 1; i <= count; i++)
        object["wf_" list[i]] = list[i]
}

# The parameters, without their brackets, cut at the commas outside of all brackets.
function cut(text, into, n, depth, from, at, c) {
    n = 0
    depth = 0
    from = 1
    for (at = 1; at <= length(text) + 1; at++) {
        c = substr(text, at, 1)
        if (c == "(")
            depth++
        else if (c == ")")
            depth--
        else if (depth == 0 && (c == "," || at > length(text))) {
            into[++n] = substr(text, from, at - from)
            gsub(/^ +| +$/, "", into[n])
            from = at + 1
        }
    }
    return n
}

/ extern .*wf_[a-z0-9_]+ \(/ {
    line = $0
    sub(/^.* \*\/ extern /, "", line)
    if (!match(line, /wf_[a-z0-9_]+ \(/) || line ~ /\.\.\./)
        next
    name = substr(line, RSTART, RLENGTH - 2)
    result = substr(line, 1, RSTART - 1)
    sub(/ +$/, "", result)
    if (seen[name]++)
        next
    text = substr(line, RSTART + RLENGTH)
    sub(/\);.*$/, "", text)
    n = cut(text, type)
    objects = 0
    call = name "("
    for (i = 1; i <= n; i++) {
        if (type[i] == "void" || type[i] == "")
            continue
        plain = type[i]
        gsub(/const | const|\*| /, "", plain)
        stars = gsub(/\*/, "*", type[i])
        if (stars == 1 && (plain in object))
            argument = "(given >> " objects++ " & 1 ? object." object[plain] " : NULL)"
        else if (stars > 0)
            argument = "(" type[i] ")0"
        else
            argument = "(" type[i] "){0}"
        call = call (i > 1 ? ", " : "") argument
    }
    call = call ")"
    kind = result == "wf_status" ? "STATUS" : "OTHER"
    plain = result
    gsub(/const | const|\*| /, "", plain)
    maker = type[1]
    gsub(/const |\*| /, "", maker)
    if (result ~ /\*$/ && (plain in object) && maker ~ /^wf_(ctx|comm|mesh|layer)$/)
        kind = "OBJECT"
    calls = calls "static int call_" name "(unsigned given)\n{\n"
    if (kind == "STATUS")
        calls = calls "    return " call " == WF_OK ? WAS_OK : WAS_ERROR;\n}\n"
    else if (kind == "OBJECT")
        calls = calls "    return " call " ? WAS_OK : wf_error_code() == WF_OK ? WAS_SILENT : WAS_ERROR;\n}\n"
    else
        calls = calls "    (void)" call ";\n    return WAS_OK;\n}\n"
    table = table "    {\"" name "\", call_" name ", " objects ", " kind "},\n"
}

END {
    printf "%s\nstatic const call every_call[] = {\n%s};\n", calls, table
}
