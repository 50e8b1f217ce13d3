# Prints the installed packages that some packages need, themselves among them, and those that Debian calls essential or
# required: awk -v wanted="NAME ..." -f closure.awk LIST, where LIST is what dpkg-query -W prints as
# '${Package}\t${Essential}\t${Priority}\t${Pre-Depends}, ${Depends}\t${Provides}\n'. Of alternatives the first one counts
# that is installed.
function bare_name(text) {
    sub(/^ +/, "", text)
    sub(/[ :(].*/, "", text)
    return text
}

function take(name) {
    if (name != "" && !(name in taken)) {
        taken[name] = 1
        queue[++n] = name
    }
}

# Takes one of "a | b (>= 2)".
function take_one(text, i, part, parts) {
    parts = split(text, part, "|")
    for (i = 1; i <= parts; i++)
        if (bare_name(part[i]) in needs)
            return take(bare_name(part[i]))
    for (i = 1; i <= parts; i++)
        if (bare_name(part[i]) in provider)
            return take(provider[bare_name(part[i])])
}

BEGIN { FS = "\t" }

{
    needs[$1] = $4
    if ($2 == "yes" || $3 == "required")
        take($1)
    names = split($5, name, ",")
    for (i = 1; i <= names; i++)
        if (!(bare_name(name[i]) in provider))
            provider[bare_name(name[i])] = $1
}

END {
    count = split(wanted, name, " ")
    for (i = 1; i <= count; i++)
        if (name[i] in needs)
            take(name[i])
    for (at = 1; at <= n; at++) {
        print queue[at]
        clauses = split(needs[queue[at]], clause, ",")
        for (i = 1; i <= clauses; i++)
            take_one(clause[i])
    }
}
