# Reads C headers, statement by statement: awk -f statements.awk -f USER.awk HEADER...
# USER.awk has statement(text, body), which is called at the end for each statement at file level, with what is between its
# braces, and directive(line) for each line of the preprocessor.
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
        if (!continued)
            directive(line)
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

# Calls statement() for all that was read.
function read_statements(depth, at, length_of, c, outside, body)
{
    length_of = length(text)
    for (at = 1; at <= length_of; at++) {
        c = substr(text, at, 1)
        if (c == "}" && --depth == 0 && outside ~ /^[ \t]*([A-Z_]+ )?static /) {
            statement(outside, "") # an inline function; the body of a type is followed by a semicolon
            outside = body = ""
        } else if (depth == 0 && c == ";") {
            statement(outside, body)
            outside = body = ""
        } else if (depth == 0 && c != "{" && c != "}")
            outside = outside c
        else if (depth > 0)
            body = body c
        if (c == "{")
            depth++
    }
}
