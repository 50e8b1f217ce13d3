#!/bin/sh
# wf-run: what it sets for this machine and for others, what it refuses, signals, restarts with fewer ranks, and what it
# writes by answers: tests/examples/examples_run.sh EXAMPLES MPIEXEC RANKS
set -eu
examples=$1
tool=$(cd "$(dirname "$0")/../../tools" && pwd)/run.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() {
    echo "$1"
    cat said
    exit 1
}
# As a person has it, without what CTest sets.
plain() {
    env -i PATH="$PATH" HOME="$HOME" "$@"
}
# says TEXT: in what it printed
says() {
    grep -qF -- "$1" said || fail "\"$1\" is not said:"
}
# refuses TEXT ARGUMENT...: one line with this text, and code 2
refuses() {
    text=$1 code=0
    shift
    plain "$tool" "$@" >said 2>&1 || code=$?
    says "$text"
    [ $code = 2 ] && [ "$(wc -l <said)" = 1 ] || fail "code $code, should be 2 after one line:"
}
until_true() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "this did not become true: $*"
        sleep 0.1
    done
}

refuses "no program is named"
refuses "./absent: there is no such program" -np 2 ./absent
refuses "-np two: should be a whole number from 1" -np two true
refuses "-np 0: should be a whole number from 1" -np 0 true
refuses "--restarts -1: should be a whole number from 0" --restarts -1 true
refuses "--gpus 0:1: should be numbers with commas between them, or none" --gpus 0:1 true
refuses "--gpus ,: should be numbers" --gpus , true
refuses "-np 08: should be a whole number" -np 08 true
refuses "cd: there is no such program" cd
refuses "/tmp: there is no such program" /tmp
refuses "--least 5: should be at most 2" --least 5 --restarts 1 -np 2 true
refuses "--least 1: is for --restarts" --least 1 true
refuses "there is no option --ranks" --ranks 2 true
refuses "--hosts absent: cannot be read" --hosts absent true
echo 'localhost slots=1' >'two words'
refuses "--hosts two words: should be a path without blanks" --hosts 'two words' true
printf 'localhost slots=2\n# a comment\nother slot=3\n' >machines
refuses 'machines, line 3: "other slot=3": should be NAME slots=N' --hosts machines true
printf '\n' >machines
refuses "machines: names no machine" --hosts machines true
printf 'no-such-machine.invalid slots=1\n' >machines
refuses "no machine is known as no-such-machine.invalid" --hosts machines true
PATH_WITHOUT=$work/bin
mkdir bin
for name in sh nproc id df awk env true command sed; do ln -s "$(command -v $name || echo /bin/true)" bin/ 2>/dev/null || :; done
code=0
env -i PATH="$PATH_WITHOUT" "$tool" -np 1 /bin/true >said 2>&1 || code=$?
[ $code = 2 ] || fail "without a launcher its code is $code:"
says "there is no mpirun"

# What it sets.
plain "$tool" --dry-run -np 99 true >said
says "OMPI_MCA_mpi_yield_when_idle=1"
says "mpirun -n 99 true"
[ "$(id -u)" != 0 ] || says "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
plain taskset -c "$(taskset -cp $$ | sed 's/.*[ ,-]//')" "$tool" --dry-run true >said
says "mpirun -n 1 true"
! grep -q yield said || fail "one rank on one core yields:"
plain CUDA_VISIBLE_DEVICES=5 APPTAINER_CONTAINER=x OMPI_MCA_hwloc_base_binding_policy=core "$tool" --dry-run -np 1 --gpus 0,3 true >said
says "OMPI_MCA_btl_vader_single_copy_mechanism=none"
says "CUDA_VISIBLE_DEVICES=0,3"
! grep -q hwloc_base_binding_policy said || fail "it sets again what its user has set:"
printf 'localhost slots=3\n' >machines
plain WEFT_LOG=error "$tool" --dry-run --hosts machines true >said
says "mpirun -n 3 --hostfile machines"
says "-x WEFT_LOG"
plain "$tool" --env -np 99 sh -c 'echo "yield $OMPI_MCA_mpi_yield_when_idle"' >said
says "yield 1"

# Ranks, their output, and their code.
plain "$tool" -np 3 sh -c 'echo "rank $OMPI_COMM_WORLD_RANK$PMI_RANK"' >said
[ "$(grep -c '^rank [012]$' said)" = 3 ] || fail "not three ranks:"
code=0
plain "$tool" -np 2 sh -c 'exit 7' >said 2>&1 || code=$?
[ $code = 7 ] || fail "its code is $code, should be the program's 7:"

# A signal that comes before the launcher is there, or once more, ends it too.
plain sh -c '"$0" -np 1 sleep 600 & sleep 0.02; kill -TERM $!; sleep 1; kill -TERM $! 2>/dev/null; wait $!' "$tool" \
    >said 2>&1 && fail "it did not end after two signals" || :

# A first INT lets the program save and end; a second one ends it at once.
cat >waits <<'END'
#!/bin/sh
trap 'echo asked >asked' USR1
echo ready >ready
while :; do sleep 0.1; done
END
cat >saves <<'END'
#!/bin/sh
trap 'exit 85' USR1
echo ready >ready
while :; do sleep 0.1; done
END
chmod +x waits saves
# A shell ignores INT in what it starts in the background, so the signal comes by env --default-signal.
for program in saves waits; do
    rm -f ready
    env -i PATH="$PATH" HOME="$HOME" env --default-signal=INT "$tool" -np 1 ./$program >said 2>&1 &
    tool_pid=$!
    until_true test -e ready
    kill -INT $tool_pid
    if [ $program = waits ]; then
        until_true test -e asked
        kill -INT $tool_pid
    fi
    code=0
    wait $tool_pid || code=$?
    [ $code = $([ $program = saves ] && echo 85 || echo 130) ] || fail "after INT the code of $program is $code:"
done

# Each start after a failure has a rank fewer, and none comes after the last.
cat >counts <<'END'
#!/bin/sh
echo "$OMPI_COMM_WORLD_SIZE$PMI_SIZE" >>sizes
[ "$OMPI_COMM_WORLD_SIZE$PMI_SIZE" = 1 ] || exit 3
END
chmod +x counts
plain "$tool" -np 3 --least 1 --restarts 5 ./counts >said 2>&1 || fail "it did not reach one rank:"
[ "$(sort sizes | uniq | tr '\n' ' ')" = "1 2 3 " ] || fail "other sizes than 3, 2, 1: $(tr '\n' ' ' <sizes)"
says "code 3: start 2 of 5 after a failure, ranks: 1"

# As root in a container that gives /dev/shm 64 MiB, on one core: Weft's program runs on more ranks, without a warning.
if [ "$(id -u)" = 0 ] && unshare --mount true 2>/dev/null; then
    plain container=some taskset -c "$(taskset -cp $$ | sed 's/.*[ ,-]//')" unshare --mount sh -c \
        'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$0" -np 3 "$1" --size 48 --iterations 2 --out "$2"' \
        "$tool" "$examples/segment" "$work/segment" >said 2>&1 || fail "it does not run where /dev/shm has 64 MiB:"
    ! grep -i -e warn -e error -e 'not enough' said || fail "it complains where /dev/shm has 64 MiB:"
fi

# What it writes.
printf 'slurm\n2\n4\n1\n8:00:00\n./train --resume auto\n' | plain "$tool" --ask job.sh >said 2>&1
cat job.sh >>said
says "#SBATCH --nodes=2 --ntasks-per-node=4 --time=8:00:00"
says "#SBATCH --gpus-per-node=1"
says "exec $tool --requeue -np 8 ./train --resume auto"
refuses "--ask job.sh: is there already" --ask job.sh
sh -n job.sh
printf 'hosts\nn1 n2\n3\n' | plain "$tool" --ask list >said 2>&1
[ "$(cat list)" = "n1 slots=3
n2 slots=3" ] || fail "another list: $(cat list)"
refuses_answer() {
    code=0
    printf '%s\n' "$2" | plain "$tool" --ask other >said 2>&1 || code=$?
    [ $code = 2 ] || fail "code $code after the answer $2:"
    says "$1"
}
refuses_answer "pbs: should be slurm or hosts" pbs
