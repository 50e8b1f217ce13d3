# For tests/static/call_arrows.sh, after rooms.awk: reads what nm -A -P says of the library's object files, prints each
# call that goes up and each circle of files that is too large; the exit code tells whether there were any. A function
# or variable that one file defines and another one names counts as a call.

function folder_of(path, parts)
{
    split(path, parts, "/")
    return parts[1]
}

# "." if a file lies in the folder itself.
function room_of(path, parts, n)
{
    n = split(path, parts, "/")
    return n > 2 ? parts[2] : "."
}

# Circles are counted by folder; core/cuda is not always there, and counts as a folder of its own.
function area_of(path)
{
    return path ~ /^core\/cuda\// ? "core/cuda" : folder_of(path)
}

function wrong(why)
{
    print why
    failed = 1
}

function check_call(from, to, name, folder, upper)
{
    folder = folder_of(from)
    upper = folder_of(to)
    if (!(folder in arrow) || !(upper in arrow))
        return # a file that the build makes
    if (index(arrow[folder], " " upper " ") == 0)
        wrong(from " refers to " name ", which is of " to ": folder " folder " is below " upper)
    else if (folder == upper && ((folder "/.") in room) && room_of(from) != room_of(to) && \
        index(room[folder "/" room_of(from)], " " room_of(to) " ") == 0)
        wrong(from " refers to " name ", which is of " to ": room " room_of(from) " is not above room " room_of(to))
}

# near[i,j]: file i of the area calls file j; afterwards far[i,j] says that it does so through any number of others.
function close_paths(n, i, j, k)
{
    for (k = 1; k <= n; k++)
        for (i = 1; i <= n; i++) {
            if (!((i, k) in far))
                continue
            for (j = 1; j <= n; j++)
                if ((k, j) in far)
                    far[i, j] = 1
        }
}

# The files that call file i and are called by it.
function circle_of(i, n, list, j)
{
    list = ""
    size = 1
    for (j = 1; j <= n; j++)
        if (j == i)
            list = list " " file[j]
        else if (((i, j) in far) && ((j, i) in far)) {
            list = list " " file[j]
            size++
        }
    return list
}

function check_circles(area, most, n, i, j, pair, list, largest, seen)
{
    n = 0
    split("", file)
    split("", far)
    split("", seen)
    for (i = 1; i <= files; i++)
        if (area_of(path[i]) == area)
            file[++n] = path[i]
    for (i = 1; i <= n; i++)
        for (j = 1; j <= n; j++)
            if ((file[i], file[j]) in calls)
                far[i, j] = 1
    close_paths(n)
    largest = n > 0
    for (i = 1; i <= n; i++) {
        list = circle_of(i, n)
        largest = size > largest ? size : largest
        if (size <= most || (list in seen))
            continue
        seen[list] = 1
        wrong(area ": " size " files call each other in a circle, and at most " most " may:" list)
        for (pair in calls) {
            split(pair, ends, SUBSEP)
            if (index(list " ", " " ends[1] " ") && index(list " ", " " ends[2] " "))
                print "    " ends[1] " -> " ends[2] ":" calls[pair]
        }
    }
    printf "%s: %d files, at most %d call each other in a circle\n", area, n, largest
}

# "DIR/weft_comm.dir/./comm/open.c.o: wf_comm_open T 0 1f"
{
    source = $1
    sub(/:$/, "", source)
    gsub(/\/\.\//, "/", source) # CMake's name of a file of the folder itself
    sub(/^.*\.dir\//, "", source)
    sub(/\.o$/, "", source)
    if (!(source in known)) {
        known[source] = 1
        path[++files] = source
    }
    if ($3 ~ /^[TDBRC]$/)
        home[$2] = source
    else if ($3 == "U")
        used[source, $2] = 1
}

END {
    defined = 0
    for (name in home)
        defined++
    if (defined == 0)
        wrong("no symbol is defined: these are no object files of the library")
    for (pair in used) {
        split(pair, end, SUBSEP)
        if (!(end[2] in home) || home[end[2]] == end[1])
            continue
        check_call(end[1], home[end[2]], end[2])
        calls[end[1], home[end[2]]] = calls[end[1], home[end[2]]] " " end[2]
    }
    check_circles("comm", 3)
    check_circles("core", 8)
    check_circles("core/cuda", 8)
    check_circles("layers", 8)
    check_circles("optim", 8)
    check_circles("datasets", 8)
    check_circles("fit", 8)
    exit failed
}
