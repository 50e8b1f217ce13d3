#!/bin/sh
# What wf-doctor prints of schedules: tests/comm/doctor_schedule.sh WF-DOCTOR
set -u
doctor=$1
failed=0

expect() {
    line=$1
    shift
    "$doctor" --schedule "$@" 2>&1 | grep -Eq "$line" || {
        echo "no line like: $line"
        "$doctor" --schedule "$@" 2>&1 | tail -4
        failed=1
    }
}

# 8 ranks on three nodes, the smallest of one: one shard, summed by one rank a node; 2 n (M-1) in all.
expect '^ +0 +0 +[0-9]+ +[0-9]+ +1398[0-9]{3}$' allreduce --reducer two_dimensional --nodes 4,3,1 --bytes 1MiB
expect ': [0-9]+ messages of 4194304 bytes in all, 4194304 bytes between nodes$' \
    allreduce --reducer two_dimensional --nodes 4,3,1 --bytes 1MiB
expect '^price: [0-9.]+ us, of which' allreduce --reducer two_dimensional --nodes 4,3,1 --bytes 1MiB
expect '^verified: ' allreduce --reducer hierarchical --nodes 64,64,17 --bytes 64KiB
expect '^ +0  await rank 1: taken -3' allreduce --reducer two_dimensional --nodes 4,3,1 --bytes 1MiB --rank 0
expect '^ +[0-9]+  sum of [0-9]+ f32: .* into slot .*; after ' allreduce --reducer single_node --nodes 4 --rank 3
expect '^ +0  receive 1 bytes from rank 7 into scratch' barrier --nodes 8 --rank 0
expect ': 0 messages of 0 bytes in all' allreduce --reducer single_node --nodes 4
expect '^ +1 +0 +[0-9]+ +1 +1000$' gather --nodes 3 --bytes 1000 --root 2
expect ': 2 messages of 2000 bytes in all' scatter --nodes 3 --bytes 1000 --root 1
expect ': 6 messages of 6000 bytes in all' alltoall --nodes 2,1 --bytes 1000
expect ': there is no call "allreduc"' allreduc
expect 'ranks of each node, as in 4,3,1' allreduce --nodes 4,,1
expect '^usage: wf-doctor --schedule CALL' allreduce --what
exit $failed
