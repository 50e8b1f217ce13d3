#!/bin/sh
# The script that wf-run --ask writes, under Slurm, on this machine alone: a signal as before the end of the time, a save, the queue again,
# and the end of the run: tests/examples/examples_slurm.sh EXAMPLES MPIEXEC RANKS
set -eu
examples=$1 mpiexec=$2 ranks=$3
tools=$(cd "$(dirname "$0")/../../tools" && pwd)
for program in slurmctld slurmd munged sbatch; do
    PATH=$PATH:/usr/sbin command -v $program >/dev/null || {
        echo "skipped: there is no $program (packages slurm-wlm and munge)"
        exit 77
    }
done
[ "$(id -u)" = 0 ] || {
    echo "skipped: only root starts Slurm's daemons"
    exit 77
}
PATH=$PATH:/usr/sbin
folder=$(mktemp -d)
chmod 755 "$folder"
daemons=
clean() {
    for daemon in $daemons; do
        kill "$daemon" 2>/dev/null || true
    done
    wait
    rm -rf "$folder"
}
trap clean EXIT
trap 'exit 1' TERM INT
fail() {
    echo "$1"
    tail -n 20 "$folder"/*.log "$folder"/job.out 2>/dev/null || true
    exit 1
}

head -c 1024 /dev/urandom >"$folder/munge.key"
chmod 400 "$folder/munge.key"
munged --force --foreground --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
    --log-file="$folder/munged.log" --seed-file="$folder/munge.seed" >"$folder/munged.out.log" 2>&1 &
daemons="$daemons $!"
host=$(hostname -s)
mkdir "$folder/state" "$folder/spool"
cat >"$folder/slurm.conf" <<END
ClusterName=weft
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/backfill
SelectType=select/linear
ReturnToService=2
KillWait=60
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$host Default=YES State=UP MaxTime=INFINITE
END
export SLURM_CONF="$folder/slurm.conf"
slurmctld -D >"$folder/slurmctld.log" 2>&1 &
daemons="$daemons $!"
slurmd -D >"$folder/slurmd.log" 2>&1 &
daemons="$daemons $!"

# until SECONDS COMMAND...: waits until it is true.
until_true() {
    left=$(($1 * 5))
    shift
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ $left -gt 0 ] || fail "this did not become true: $*"
        sleep 0.2
    done
}
idle() {
    sinfo -h -o %T | grep -q idle
}
said() {
    grep -q "$1" "$folder/job.out"
}
until_true 60 idle
mkdir "$folder/bin"
ln -s "$tools/run.sh" "$folder/bin/wf-run"
export PATH="$folder/bin:$PATH"
printf '%s\n' slurm 1 "$ranks" 0 1:00:00 "$examples/dcgan_cifar --channels 32 --batch 8 --iterations 2000 --sample-every 0 --log-every 10 \
--out $folder/gan --snapshots $folder/gan/saves --snapshot-every 100000 --resume auto" | "$folder/bin/wf-run" --ask "$folder/job.sh"
job=$(sbatch --parsable --ntasks-per-node=1 --output="$folder/job.out" --chdir="$folder" "$folder/job.sh")
until_true 120 said iteration
scancel --signal=USR1 --batch "$job"
until_true 60 said 'a signal has come'
until_true 240 said 'goes on from step'
until_true 240 said 'Look at'
gone() {
    [ -z "$(squeue -h -j "$job")" ] || squeue -h -j "$job" -o %T | grep -q COMPLET
}
until_true 60 gone
[ "$(scontrol -o show job "$job" | sed -n 's/.*Restarts=\([0-9]*\).*/\1/p')" = 1 ] || fail "it was not queued again once"
scontrol -o show job "$job" | grep -q 'ExitCode=0:0' || fail "it did not end well"
grep -e 'a signal has come' -e 'goes on from' "$folder/job.out"
