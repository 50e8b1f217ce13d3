# Rules about the language of the tree, which grep cannot check line by line: awk -f house_rules.awk -v most=N FILE...
# Files are read with their paths from the root; a line for each violation is printed.
#
# - Comments. A comment must not open with a word of `opener`: a sentence without a subject follows, or a person where a
#   rank, a caller or a thread is meant. It must not hold a phrase of `phrase`, of which the right side is the plain form.
# - Types. One name is one type in the library: a type of a header, or one that begins with wf_, has one definition.
# - Static functions. A name that three files of the library give to functions of their own has three meanings. There
#   are `most` such names at most. Lower the number after a rename; never raise it.

BEGIN {
    n = split("Of Likewise So Whether Where Whoever Who Whose Whom Whatever Whichever Behind Beside Besides Alone Nobody " \
        "Somebody Everybody Meanwhile Otherwise Else Such Here Those And But Or Is Has Thus Hence", word, " ")
    for (i = 1; i <= n; i++)
        opener[word[i]] = 1
    opener["The same"] = 1
    phrase["likewise"] = "the same, said in full"
    phrase["everybody"] = "every rank"
    phrase["somebody"] = "a rank, the caller"
    phrase["hears of"] = "learns of, is told of"
    phrase["hear of"] = "learn of, are told of"
    phrase["heard of"] = "learned of, was told of"
    phrase["otherwise than"] = "in another way than, differs from"
    phrase["comes about"] = "is computed, is created"
    phrase["come about"] = "are computed, are created"
    phrase["thereby"] = "by this"
    phrase["wherein"] = "in which"
}

function violation(text) {
    print FILENAME ":" FNR ": " text
}

# Keeps a line of the comment that is read, and where it is.
function keep(text) {
    comment = comment " " text
    end = FILENAME ":" FNR
}

# A comment began in this line and is `text` so far.
function opens(text,    first) {
    sub(/^[*#\/ \t]+/, "", text)
    first = text
    sub(/[^A-Za-z0-9_].*$/, "", first)
    if (text ~ /^The same([^A-Za-z0-9_]|$)/)
        first = "The same"
    if (first in opener)
        violation("a comment opens with \"" first "\"")
    return text == ""
}

# All of a comment has been read.
function closes(text,    p) {
    text = " " tolower(text) " "
    gsub(/[^a-z']+/, " ", text)
    for (p in phrase)
        if (index(text, " " p " "))
            print end ": a comment ends here that has \"" p "\": should be " phrase[p]
}

function close_comment() {
    if (comment != "")
        closes(comment)
    comment = ""
}

# The comments of a line of C. `block`: it began in one. `empty`: that one has no word yet.
function read_c(line,    slashes, star) {
    while (line != "") {
        if (block) {
            if (empty && line !~ /^[ \t*]*(\*\/.*)?$/)
                empty = opens(line)
            star = index(line, "*/")
            keep(star ? substr(line, 1, star - 1) : line)
            if (!star)
                return
            line = substr(line, star + 2)
            block = 0
            close_comment()
            continue
        }
        gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
        star = index(line, "/*")
        slashes = index(line, "//")
        if (slashes && (!star || slashes < star)) {
            if (!lines)
                opens(substr(line, slashes + 2))
            lines = 2
            keep(substr(line, slashes + 2))
            return
        }
        if (!star)
            return
        line = substr(line, star + 2)
        block = empty = 1
    }
}

# A definition of a type begins, or ends with its name.
function read_type(line,    name) {
    name = ""
    if (line ~ /^(typedef )?(struct|union|enum) [A-Za-z_0-9]+ \{/) {
        name = line
        sub(/^(typedef )?(struct|union|enum) /, "", name)
        sub(/ .*/, "", name)
    } else if (line ~ /^\} [A-Za-z_0-9]+;/) {
        name = substr(line, 3)
        sub(/;.*/, "", name)
    }
    if (name == "" || (name, FILENAME) in has_type)
        return
    has_type[name, FILENAME] = 1
    types[name]++
    if (FILENAME ~ /\.h$/ || name ~ /^wf_/)
        shared_type[name] = 1
    type_files[name] = type_files[name] " " FILENAME
}

# A static function is declared or defined; a declaration ends with a semicolon.
function read_static(line,    name) {
    if (line ~ /^static [^=(]*[ *][A-Za-z_0-9]+\(/) {
        name = line
        sub(/\(.*/, "", name)
        sub(/.*[ *]/, "", name)
        pending = name
    }
    if (pending != "" && line ~ /;/)
        pending = ""
    if (pending == "" || line !~ /^\{/)
        return
    if (!((pending, FILENAME) in has_static)) {
        has_static[pending, FILENAME] = 1
        statics[pending]++
        static_files[pending] = static_files[pending] " " FILENAME
    }
    pending = ""
}

FNR == 1 {
    close_comment()
    block = lines = 0
    pending = ""
    c = FILENAME ~ /\.(c|h|cu|cpp)$/
    library = c && FILENAME ~ /^(core|comm|layers|optim|datasets|fit)\//
}

!c {
    if ($0 !~ /^[ \t]*#/) {
        close_comment()
        next
    }
    if (comment == "")
        opens($0)
    keep($0)
    next
}

{
    if (library && !block) {
        read_type($0)
        read_static($0)
    }
    read_c($0)
    if (lines > 0 && --lines == 0)
        close_comment()
}

END {
    close_comment()
    for (name in types)
        if (types[name] > 1 && name in shared_type)
            print "the type " name " is defined in" type_files[name] ": rename one by what it means"
    many = 0
    for (name in statics)
        if (statics[name] > 2) {
            many++
            list = list "\n  " name ":" static_files[name]
        }
    if (many > most)
        print many " names of static functions are shared by three files or more, should be " most + 0 " at most; " \
            "rename one to verb and noun:" list
}
