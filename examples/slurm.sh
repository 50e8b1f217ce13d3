#!/bin/bash
# A job of Slurm that saves two minutes before its time is over and is queued again, until it is done:
#
#     sbatch --ntasks=8 --time=4:00:00 examples/slurm.sh mpirun build/examples/dcgan_cifar --snapshot-every 500 --resume auto
#
#SBATCH --job-name=weft
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

# Slurm signals this script alone (B:), because the daemons that mpirun starts as steps on other nodes would die of USR1;
# the launcher forwards it to all ranks, which save and leave with code 85.
# A launcher that gets TERM itself, from scancel, gives the ranks this time; it also waits so long after any code but 0.
export OMPI_MCA_odls_base_sigkill_timeout=${OMPI_MCA_odls_base_sigkill_timeout-10}
export PRTE_MCA_odls_base_sigkill_timeout=${PRTE_MCA_odls_base_sigkill_timeout-10}
"$@" &
launcher=$!
trap 'kill -USR1 $launcher' USR1
wait $launcher
code=$?
while kill -0 $launcher 2>/dev/null; do # the signal ended the wait, not the launcher
    wait $launcher
    code=$?
done
if [ $code -eq 85 ]; then
    scontrol requeue "$SLURM_JOB_ID"
    sleep 60 # Slurm ends what is left of this run
fi
exit $code
