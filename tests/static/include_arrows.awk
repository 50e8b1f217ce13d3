# For tests/static/include_arrows.sh, after rooms.awk: prints each wrong line; the exit code tells whether there were any.

function set_of(names, array, words, i)
{
    split(names, words, " ")
    for (i in words)
        array[words[i]] = 1
}

BEGIN {
    # Foreign header -> where it may be included; a header that is in neither list is foreign and has no home yet.
    home["mpi.h"] = "^(comm/|tests/bench/|examples/(allreduce_bench.c|shallow.h))"
    home["nccl.h"] = "^comm/transport/nccl.c$"
    home["hdf5.h"] = "^comm/"
    home["H5FDdevelop.h"] = "^comm/file/driver.c$"
    home["netcdf.h"] = "^datasets/"
    home["dlpack"] = "^(core/dlpack.c|tests/)"
    home["cuda"] = "^(core/cuda|comm)/"
    home["cudnn"] = "^core/cuda/"
    home["cublas"] = "^core/cuda/"
    home["library"] = "^core/cuda/"
    home["nvtx3"] = "^core/cuda/"
    home["oneapi"] = "^core/cpu/"
    home["libxsmm.h"] = "^tests/bench/"
    home["omp.h"] = "^core/(cpu/|context.c)"
    home["zlib.h"] = "^datasets/"
    home["stb"] = "^datasets/"
    home["argp.h"] = "^examples/"
    home["immintrin.h"] = "^core/cpu/"
    home["sanitizer"] = "^comm/"
    home["weft"] = "^((examples|tests)/|weft.h)" # and weft_places.h, which the build makes

    set_of("assert.h complex.h ctype.h errno.h fenv.h float.h inttypes.h limits.h locale.h math.h setjmp.h signal.h " \
        "stdalign.h stdarg.h stdatomic.h stdbool.h stddef.h stdint.h stdio.h stdlib.h string.h time.h", standard)
    set_of("dirent.h dlfcn.h elf.h execinfo.h fcntl.h fnmatch.h ftw.h glob.h poll.h pthread.h pty.h sched.h semaphore.h spawn.h strings.h sys/file.h sys/ioctl.h sys/mman.h sys/mount.h sys/resource.h sys/stat.h sys/statvfs.h " \
        "sys/syscall.h sys/time.h sys/types.h sys/wait.h ucontext.h unistd.h", posix)
    set_of("stdbool.h stddef.h stdint.h", for_users)
}

function wrong(why)
{
    printf "%s:%d: %s: %s\n", FILENAME, FNR, why, $0
    failed = 1
}

function top_of(path, parts)
{
    split(path, parts, "/")
    return parts[1]
}

# The sub-folder of a file: "." where it lies in the folder itself.
function room_of(path, parts, n)
{
    n = split(path, parts, "/")
    return n > 2 ? parts[2] : "."
}

# A user header: installed for programs, so x_author.h, x_impl.h and the headers of tests and examples are none.
function is_user_header(path)
{
    return path ~ /\.h$/ && path !~ /_(author|impl)\.h$/ && path !~ /^(tests|examples)\//
}

function check_own(name, target)
{
    target = top_of(name)
    if (name ~ /(^|\/)\.\.\//)
        wrong("paths start at the root")
    else if (name !~ /\// && name != "weft.h")
        wrong("paths start at the root")
    else if (index(arrow[folder], " " target " ") == 0)
        wrong(folder " may not include " target)
    else if (name ~ /_impl\.h$/ && target != folder && inside[folder "/" room_of(FILENAME)] != target)
        wrong("an _impl header is for its own folder")
    else if (name ~ /_impl\.h$/ && room_of(name) != "." && room_of(name) != room_of(FILENAME) && \
        index(room[folder "/" room_of(FILENAME)], " " room_of(name) " ") == 0)
        wrong("room " room_of(FILENAME) " may not include an _impl header of room " room_of(name))
    else if (is_user_header(FILENAME) && !is_user_header(name))
        wrong("a user header includes user headers alone")
    else if (FILENAME ~ /_author\.h$/ && name ~ /_impl\.h$/)
        wrong("an author header includes no _impl header")
}

function check_foreign(name, key)
{
    if (name == "ucontext.h" && FILENAME !~ /^tests\/emulate\//)
        wrong("nothing runs on a stack of its own but the emulated device")
    if (name in standard || name in posix) {
        if (is_user_header(FILENAME) && !(name in for_users))
            wrong("user headers need stdbool.h, stddef.h and stdint.h alone")
        return
    }
    key = top_of(name)
    sub(/_.*$/, "", key)
    if (key ~ /^(cudnn|cublas|cuda)/)
        key = key ~ /^cudnn/ ? "cudnn" : key ~ /^cublas/ ? "cublas" : "cuda"
    if (!(key in home))
        wrong("a foreign header without a home")
    else if (folder != "tests" && FILENAME !~ home[key] || is_user_header(FILENAME) && name != "weft_places.h")
        wrong("a foreign header away from its home")
}

FNR == 1 { folder = top_of(FILENAME) }
/^[ \t]*#[ \t]*include[ \t]*"/ { split($0, quoted, "\""); check_own(quoted[2]) }
/^[ \t]*#[ \t]*include[ \t]*</ { split($0, angled, /[<>]/); check_foreign(angled[2]) }
/(^|[^a-z_])(getenv|secure_getenv|setenv|environ)[ \t]*\(/ {
    if (FILENAME != "core/config.c" && FILENAME != "tools/plan/plan.c" && folder != "tests" && folder != "examples")
        wrong("core/config.c alone reads the environment")
}

END { exit failed }
