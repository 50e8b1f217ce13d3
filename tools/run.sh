#!/bin/sh
# wf-run: starts a program on ranks, as a person would who knows what this machine needs. It sets what OpenMPI and MPICH
# ask for as root, in a container, with more ranks than cores, without ssh; it starts the program again after a failure;
# and it writes batch scripts. Programs and the library know nothing of it. Called by people, by the Makefile, in batch
# scripts.
set -u
me=wf-run

usage() {
    cat <<'END'
wf-run: starts a program on several ranks of this machine, or of others

  wf-run [-np N] [OPTION...] PROGRAM [ARGUMENT...]

  -np N          ranks; default: one for each core that this process may use, or Slurm's number of tasks
  --hosts FILE   a line for each machine: NAME slots=N
  --gpus LIST    the GPUs to use, as 0,2, or none
  --restarts N   start the program again, after a failure at most N times, and after each signal that made it save
                 (exit code 85); it goes on by itself where it is given --resume auto. Default 0
  --least N      each start after a failure has one rank fewer, down to N
  --requeue      in a job of Slurm: after code 85 the job is queued again
  --dry-run      print what would be set and started
  --env          run PROGRAM as it is, without a launcher, with what is set for -np ranks
  --ask FILE     ask what is wanted, and write FILE: a batch script of Slurm, or a list of machines

INT, TERM and USR1 let the program save and end; a second INT ends it at once. The exit code is the program's.
END
}

fail() {
    echo "$me: $1" >&2
    exit 2
}

# is_number TEXT LEAST
is_number() {
    case $1 in
    '' | 0?* | *[!0-9]* | ??????*) return 1 ;;
    esac
    [ "$1" -ge "$2" ]
}

# need_number OPTION TEXT LEAST
need_number() {
    is_number "$2" "$3" || fail "$1 $2: should be a whole number from $3"
}

# --- What the machine needs ---------------------------------------------------------------------------------------------

# put NAME VALUE: the environment of the program, unless its user has set it.
put() {
    eval "[ -n \"\${$1+set}\" ]" && return
    export "$1=$2"
    [ -z "$dry" ] || echo "$1=$2"
}

in_container() {
    [ -e /.dockerenv ] || [ -e /run/.containerenv ] || [ -n "${container-}${APPTAINER_CONTAINER-}${SINGULARITY_CONTAINER-}" ]
}

# OMPI_MCA_ of a launcher is OpenMPI 4's, PRTE_MCA_ OpenMPI 5's, MPIR_CVAR_ MPICH's.
set_environment() {
    if [ "$(id -u)" = 0 ]; then
        put OMPI_ALLOW_RUN_AS_ROOT 1
        put OMPI_ALLOW_RUN_AS_ROOT_CONFIRM 1
    fi
    # Weft divides the cores among the ranks itself, and OpenMPI counts two threads of a core as one.
    put OMPI_MCA_rmaps_base_oversubscribe 1
    put PRTE_MCA_rmaps_default_mapping_policy :oversubscribe
    put OMPI_MCA_hwloc_base_binding_policy none
    put PRTE_MCA_hwloc_default_binding_policy none
    here=$ranks # ranks on this machine
    [ -z "$hosts" ] || here=1
    [ -z "${SLURM_JOB_NUM_NODES-}" ] || here=$(((ranks + SLURM_JOB_NUM_NODES - 1) / SLURM_JOB_NUM_NODES))
    if [ "$here" -gt "$cores" ]; then
        put OMPI_MCA_mpi_yield_when_idle 1
        put MPIR_CVAR_POLLS_BEFORE_YIELD 1
        put OMP_WAIT_POLICY passive
    fi
    if in_container; then
        put OMPI_MCA_btl_vader_single_copy_mechanism none
    fi
    if [ -z "$hosts" ] && ! command -v ssh >/dev/null && ! command -v rsh >/dev/null; then
        put OMPI_MCA_plm_rsh_agent true
    fi
    # OpenMPI and UCX, over which MPICH sends, take some MiB a rank of /dev/shm, and die where there are none.
    free=$(df -Pm /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')
    if [ "${free:-0}" -lt $((16 * here)) ]; then
        put OMPI_MCA_btl_vader_backing_directory "${TMPDIR:-/tmp}"
        put UCX_POSIX_DIR "${TMPDIR:-/tmp}"
    fi
    # A launcher that gets TERM itself, as from scancel, lets the ranks save for so many seconds. It also waits so long
    # after any code but 0, which others need not.
    if [ -n "$requeue" ]; then
        put OMPI_MCA_odls_base_sigkill_timeout 10
        put PRTE_MCA_odls_base_sigkill_timeout 10
    fi
    [ -z "$gpus" ] || unset CUDA_VISIBLE_DEVICES # which Slurm sets
    case $gpus in
    none) put CUDA_VISIBLE_DEVICES "" ;;
    ?*) put CUDA_VISIBLE_DEVICES "$gpus" ;;
    esac
}

check_hosts() {
    [ -r "$hosts" ] || fail "--hosts $hosts: cannot be read"
    case $hosts in
    *[[:space:]]*) fail "--hosts $hosts: should be a path without blanks" ;;
    esac
    slots=$(awk -v me="$me" -v file="$hosts" '
        { sub(/#.*/, "") }
        NF == 0 { next }
        NF > 2 || (NF == 2 && $2 !~ /^slots=[1-9][0-9]*$/) {
            print me ": " file ", line " FNR ": \"" $0 "\": should be NAME slots=N" >"/dev/stderr"
            exit wrong = 1
        }
        { n += NF == 2 ? substr($2, 7) : 1; names++ }
        END { if (wrong) exit 1; if (names) print n; else { print me ": " file ": names no machine" >"/dev/stderr"; exit 1 } }' <"$hosts") || exit 2
    for name in $(sed 's/#.*//' "$hosts" | awk 'NF { print $1 }'); do
        getent ahosts "$name" >/dev/null || fail "$hosts: no machine is known as $name"
    done
}

# --- Starting -----------------------------------------------------------------------------------------------------------

find_launcher() {
    launcher=
    for name in mpirun mpiexec; do
        [ -n "$launcher" ] || ! command -v $name >/dev/null || launcher=$name
    done
    if [ -z "$launcher" ] && [ -n "${SLURM_JOB_ID-}" ] && command -v srun >/dev/null; then
        launcher=srun
    fi
    [ -n "$launcher" ] || fail "there is no mpirun, and no srun in a job of Slurm (Debian: openmpi-bin)"
    [ -z "$hosts" ] || $launcher --version 2>/dev/null | grep -q -e 'Open MPI' -e OpenRTE ||
        fail "--hosts: $launcher is not OpenMPI's, whose lists of machines these are"
}

# A function, a word of the shell or a folder is no program.
check_program() {
    found=
    case $1 in
    */*) found=$1 ;;
    *)
        IFS=:
        for folder in $PATH; do
            [ -n "$found" ] || [ ! -f "$folder/$1" ] || [ ! -x "$folder/$1" ] || found=$folder/$1
        done
        unset IFS
        ;;
    esac
    [ -f "$found" ] && [ -x "$found" ] || fail "$1: there is no such program"
}

# The words between the launcher and the program, in $words. Variables go to other machines by name.
launcher_words() {
    words="-n $ranks"
    [ -n "$hosts" ] || return
    words="$words --hostfile $hosts"
    for name in $(env | sed -n 's/^\(\(WEFT\|OMP\|NCCL\|CUDA\|ONEDNN\)_[A-Z0-9_]*\)=.*/\1/p'); do
        words="$words -x $name"
    done
}

# The program gets USR1, which makes it save and leave. At a second INT its ranks are killed, and then the launcher ends; a
# second TERM goes to the launcher, which may not have had its ranks at the first. Who ends a job of Slurm by anything but
# USR1 does not want it back.
asked= job=
on_signal() {
    [ "$1" = USR1 ] || requeue=
    [ -n "$job" ] || asked=once # start looks
    [ -n "$job" ] || return
    if [ "$asked" ] && [ "$1" = TERM ]; then
        kill -TERM "$job" 2>/dev/null
    elif [ "$asked" ] && [ "$1" = INT ]; then
        asked=now
        # shellcheck disable=SC2046 # one word a process
        kill -KILL $(cat "/proc/$job/task"/*/children) 2>/dev/null || kill -TERM "$job" 2>/dev/null
    else
        asked=${asked:-once}
        kill -USR1 "$job" 2>/dev/null
    fi
}

# In a session of its own, so that a terminal's INT comes here alone. Sets $code.
start() {
    setsid "$@" <&0 &
    job=$!
    [ -z "$asked" ] || kill -USR1 "$job" 2>/dev/null
    code=0
    wait "$job" || code=$?
    while [ "$asked" ] && kill -0 "$job" 2>/dev/null; do # a signal ended the wait, not the launcher
        code=0
        wait "$job" || code=$?
    done
}

run() {
    failures=0
    trap 'on_signal INT' INT
    trap 'on_signal TERM' TERM HUP QUIT
    trap 'on_signal USR1' USR1
    code=85
    while [ -z "$asked" ]; do
        launcher_words
        # shellcheck disable=SC2086 # options are words without spaces
        start $launcher $words "$@"
        [ "$code" -ne 0 ] && [ -z "$asked" ] || break
        [ "$code" -ne 85 ] || [ "$restarts" -eq 0 ] || continue
        [ "$failures" -lt "$restarts" ] || break
        failures=$((failures + 1))
        [ -z "$least" ] || [ "$ranks" -le "$least" ] || ranks=$((ranks - 1))
        echo "$me: code $code: start $failures of $restarts after a failure, ranks: $ranks" >&2
    done
    if [ "$code" = 85 ] && [ -n "$requeue" ] && [ -n "${SLURM_JOB_ID-}" ]; then
        scontrol requeue "$SLURM_JOB_ID" && sleep 60 # Slurm ends what is left of this run
    fi
    [ "$asked" != now ] || code=130
    exit "$code"
}

# --- Questions ----------------------------------------------------------------------------------------------------------

# ask QUESTION DEFAULT: the answer, in $answer
ask() {
    printf '%s [%s]: ' "$1" "$2" >&2
    read -r answer || answer=
    [ -n "$answer" ] || answer=$2
}

# ask_number QUESTION DEFAULT LEAST
ask_number() {
    ask "$1" "$2"
    is_number "$answer" "$3" || fail "$answer: should be a whole number from $3"
}

write_by_answers() {
    [ ! -e "$1" ] || fail "--ask $1: is there already"
    case $1 in
    *[[:space:]]*) fail "--ask $1: should be a path without blanks" ;;
    esac
    self=$(command -v "$0")
    case $self in
    /*) ;;
    *) self=$PWD/$self ;;
    esac
    ask "Slurm's batch script, or a list of machines? (slurm, hosts)" slurm
    kind=$answer
    case $kind in
    slurm)
        ask_number "machines" 1 1 && nodes=$answer
        ask_number "ranks on each" "$cores" 1 && tasks=$answer
        ask_number "GPUs on each" 0 0 && devices=$answer
        ask "longest time (hours:minutes:seconds)" 4:00:00 && limit=$answer
        ask "program and its arguments" "./program --snapshot-every 500 --resume auto" && command=$answer
        {
            echo "#!/bin/sh"
            echo "#SBATCH --nodes=$nodes --ntasks-per-node=$tasks --time=$limit"
            [ "$devices" = 0 ] || echo "#SBATCH --gpus-per-node=$devices"
            echo "# Two minutes before the end the program is asked to save; then the job is queued again, until it is done."
            echo "#SBATCH --signal=B:USR1@120 --requeue --open-mode=append"
            echo "exec $self --requeue -np $((nodes * tasks)) $command"
        } >"$1" || exit 1
        echo "$me: $1 is written; submit it by: sbatch $1" >&2
        ;;
    hosts)
        : >"$1" || exit 1
        ask "machines, by their names" "$(hostname)" && names=$answer
        ask_number "ranks on each" "$cores" 1
        for name in $names; do
            echo "$name slots=$answer" >>"$1"
        done
        echo "$me: $1 is written; use it by: $me --hosts $1 PROGRAM" >&2
        ;;
    *) fail "$kind: should be slurm or hosts" ;;
    esac
    exit 0
}

cores=$(nproc)
ranks= hosts= gpus= restarts=0 least= requeue= dry= alone= slots=
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage && exit 0 ;;
    -np | -n | --hosts | --gpus | --restarts | --least | --ask) [ $# -ge 2 ] || fail "$1 needs an argument" ;;
    --requeue) requeue=1 && shift && continue ;;
    --dry-run) dry=1 && shift && continue ;;
    --env) alone=1 && shift && continue ;;
    --) shift && break ;;
    -*) fail "there is no option $1; see $me --help" ;;
    *) break ;;
    esac
    case $1 in
    -np | -n) need_number "$1" "$2" 1 && ranks=$2 ;;
    --hosts) hosts=$2 ;;
    --gpus) gpus=$2 ;;
    --restarts) need_number "$1" "$2" 0 && restarts=$2 ;;
    --least) need_number "$1" "$2" 1 && least=$2 ;;
    --ask) write_by_answers "$2" ;;
    esac
    shift 2
done
[ $# -gt 0 ] || fail "no program is named; see $me --help"
case $gpus in
*[!0-9,]* | ,* | *, | *,,*) [ "$gpus" = none ] || fail "--gpus $gpus: should be numbers with commas between them, or none" ;;
esac
check_program "$1"
[ -z "$hosts" ] || check_hosts
[ -z "$least" ] || [ "$restarts" -gt 0 ] || fail "--least $least: is for --restarts, which is not given"
ranks=${ranks:-${slots:-${SLURM_NTASKS:-$cores}}}
[ -z "$least" ] || [ "$least" -le "$ranks" ] || fail "--least $least: should be at most $ranks, the number of ranks"
set_environment
if [ -n "$alone" ]; then
    [ -z "$dry" ] || exit 0
    exec "$@"
fi
find_launcher
if [ -n "$dry" ]; then
    launcher_words
    echo "$launcher $words $*"
    exit 0
fi
run "$@"
