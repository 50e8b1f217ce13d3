# What objdump -dr says of the objects of one level of core/cpu; see vectors.sh. -v wide: the registers of the level (xmm,
# ymm or zmm), -v allowed: the file of what may stay scalar.
#
# A loop ends with a jump back. In an innermost loop arithmetic of single floats is either what is left of a loop of
# vectors, in the same function and with the same operations, or a loop that never became one.

BEGIN {
    arithmetic = "(add|sub|mul|div|sqrt|min|max|fn?m(add|sub)(132|213|231)|cmp[a-z_]*)"
    scalar = "^v?(" arithmetic "s[sd]|u?comis[sd]|cvts[sd]2s[sd])$"
    packed = "^v?(" arithmetic "p[sd]|cvt[a-z]*[pd][qsd]2p[sd][xyz]?)$"
    selected = "^v?p?(blend|and|or|movm)"
    called_float = "^(fmaf?|sqrtf?|expf?|logf?)$"
    while ((getline line <allowed) > 0)
        if (line !~ /^(#|$)/) {
            split(line, word, " ")
            may[word[1] " " word[2]] = 1
        }
}

# The operation, whatever its width, rounding and number of operands: what a remainder shares with its loop.
function operation(name) {
    sub(/^v/, "", name)
    if (name ~ /^fn?m/)
        return "fma"
    if (name ~ /^(u?comi|cmp|max|min)/ || name ~ selected)
        return "select"
    return name ~ /^(add|sub)/ ? "add" : substr(name, 1, 3)
}

function with(set, name) {
    return index(set, " " name " ") ? set : set name " "
}

function within(some, all,    i, n, name) {
    n = split(some, name, " ")
    for (i = 1; i <= n; i++)
        if (!index(all, " " name[i] " "))
            return 0
    return 1
}

# Returns true if control gets from the first of these instructions to the last within them. A block that the compiler has put
# behind a jump and that jumps back to where it was taken from is no loop.
function reaches(from, to,    i, there, changed) {
    there[from] = 1
    do {
        changed = 0
        for (i = from; i <= to; i++)
            if (i in there) {
                if (name[i] ~ /^jmp/ && text[i] ~ /\*/) # a table of targets: any of them
                    return 1
                if (name[i] !~ /^(jmp|ret)/ && !(i + 1 in there))
                    there[i + 1] = changed = 1
                if (name[i] ~ /^j/ && (target[i] in at) && at[target[i]] >= from && !(at[target[i]] in there))
                    there[at[target[i]]] = changed = 1
            }
    } while (changed)
    return to in there
}

# Regions between a jump back and its target; those that overlap are one loop with several ends.
function find_loops(    i, j, changed) {
    loops = 0
    for (i = 1; i <= count; i++)
        if (name[i] ~ /^j/ && (target[i] in at) && at[target[i]] <= i && reaches(at[target[i]], i)) {
            first[++loops] = at[target[i]]
            last[loops] = i
        }
    do {
        changed = 0
        for (i = 1; i <= loops; i++)
            for (j = 1; j <= loops; j++)
                if (i != j && first[i] && first[j] && first[i] <= first[j] && first[j] <= last[i] &&
                    (first[i] == first[j] || last[i] < last[j])) {
                    last[i] = last[j] > last[i] ? last[j] : last[i]
                    first[j] = 0
                    changed = 1
                }
    } while (changed)
}

function innermost(loop,    i) {
    for (i = 1; i <= loops; i++)
        if (i != loop && first[i] && first[loop] <= first[i] && last[i] <= last[loop])
            return 0
    return 1
}

# The name of a function without what the compiler adds to it.
function plain(symbol) {
    sub(/\.(constprop|isra|part|cold|lto_priv).*/, "", symbol)
    sub(/\._omp_fn\.[0-9]+$/, ".team", symbol)
    return symbol
}

function callee(line) {
    sub(/^[^<]*</, "", line)
    sub(/[+>].*/, "", line)
    return plain(line)
}

function complain(loop, what) {
    print file ": " short ": the loop at " address[first[loop]] " of " last[loop] - first[loop] + 1 " instructions" what
    bad = 1
}

# The operations of a loop: in `singles` of single floats, in `vectors` of whole registers.
function read_loop(loop,    i) {
    singles = vectors = " "
    for (i = first[loop]; i <= last[loop]; i++) {
        if (name[i] ~ scalar)
            singles = with(singles, operation(name[i]))
        if ((name[i] ~ packed || name[i] ~ selected) && (text[i] ~ wide || name[i] ~ /^v?cvtpd2ps/))
            vectors = with(vectors, operation(name[i]))
        if (called[i] ~ called_float)
            complain(loop, " calls " called[i])
        if (name[i] ~ /^call/ && text[i] ~ /</)
            calls[file " " loop_number++] = short " " callee(text[i])
    }
}

# Each scalar loop, those of most operations first, is matched with the vector loop of the fewest that has all of its own.
function finish(    i, j, k, best, narrow, single, wide_set, left) {
    for (i = 1; i <= count && short != ""; i++) {
        if (name[i] ~ scalar)
            has_singles[file " " short] = 1
        if (name[i] ~ packed)
            has_vectors[file " " short] = 1
    }
    if (short == "" || (file " " short) in may)
        return
    find_loops()
    narrow = left = 0
    for (i = 1; i <= loops; i++)
        if (first[i] && innermost(i)) {
            read_loop(i)
            if (singles != " ") {
                single[++narrow] = singles
                loop_of[narrow] = i
            }
            if (vectors != " ")
                wide_set[++left] = vectors
        }
    whole += left
    for (k = 1; k <= narrow; k++) {
        i = 0
        for (j in single)
            if (!i || length(single[j]) > length(single[i]))
                i = j
        best = 0
        for (j in wide_set)
            if (within(single[i], wide_set[j]) && (!best || length(wide_set[j]) < length(wide_set[best])))
                best = j
        if (best)
            delete wide_set[best]
        else
            complain(loop_of[i], " has single floats:" single[i])
        delete single[i]
    }
}

/file format/ {
    finish()
    file = $1
    sub(/.*\//, "", file)
    sub(/\.o:$/, "", file)
    short = ""
}

/^[0-9a-f]+ <.*>:$/ {
    finish()
    short = plain(substr($2, 2, length($2) - 3))
    count = 0
    split("", at)
    split("", called)
    next
}

/R_X86_64_/ {
    called[count] = $3
    sub(/-0x.*/, "", called[count])
    next
}

/^ +[0-9a-f]+:\t/ {
    address[++count] = substr($1, 1, length($1) - 1)
    at[address[count]] = count
    name[count] = $2
    target[count] = $3
    text[count] = $0
}

END {
    finish()
    for (entry in calls) {
        split(entry, word, " ")
        split(calls[entry], called_by, " ")
        key = word[1] " " called_by[2]
        if (called_by[1] != called_by[2] && !(key in may) && (key in has_singles) && !(key in has_vectors)) {
            print word[1] ": " called_by[1] ": an innermost loop calls " called_by[2] ", which has single floats alone"
            bad = 1
        }
    }
    if (!whole) {
        print "no loop has vectors of " wide
        bad = 1
    }
    print whole + 0 " loops of " wide
    exit bad
}
