#!/bin/sh
# Runs a program on 2x2 ranks over two virtual nodes of this machine (network namespaces, joined by the link "weft0"):
# tests/comm/cluster.sh [-r RATE] [-n RANKS-A-NODE] [-t SECONDS] [-c FILE] MPIEXEC PROGRAM [ARGUMENT...]
# RATE makes the link slow, as tc writes it: 1gbit. The link is cut once FILE says "loop". Everything is removed at the
# end, also after a failure. Exits with the program's code, 124 past the time, 77 where there can be no namespaces.
set -eu
rate= ranks=2 seconds=240 cut=
while getopts r:n:t:c: option; do
    case $option in
    r) rate=$OPTARG ;;
    n) ranks=$OPTARG ;;
    t) seconds=$OPTARG ;;
    c) cut=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
mpiexec=$1
shift

skip() {
    echo "SKIP: no virtual nodes here: $1"
    exit 77
}

left=weft$$a right=weft$$b subnet=10.71.0
work=$(mktemp -d)

remove() {
    for name in "$left" "$right"; do
        for pid in $(ip netns pids "$name" 2>/dev/null); do
            kill -KILL "$pid" 2>/dev/null || true
        done
        ip netns del "$name" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap remove EXIT
trap 'exit 130' INT TERM HUP

for tool in ip unshare hostname timeout; do
    command -v "$tool" >/dev/null || skip "there is no $tool"
done
[ "$(id -u)" = 0 ] || skip "that takes the superuser"
ip netns add "$left" 2>"$work/why" || skip "$(head -n 1 "$work/why")"
ip netns add "$right" 2>"$work/why" || skip "$(head -n 1 "$work/why")"
ip -n "$left" link add weft0 type veth peer name weft0 netns "$right" 2>"$work/why" || skip "$(head -n 1 "$work/why")"
number=1
for name in "$left" "$right"; do
    ip -n "$name" addr add "$subnet.$number/24" dev weft0
    ip -n "$name" link set lo up
    ip -n "$name" link set weft0 up
    if [ -n "$rate" ]; then
        ip netns exec "$name" tc qdisc add dev weft0 root tbf rate "$rate" burst 256k latency 50ms 2>"$work/why" ||
            skip "$(head -n 1 "$work/why")"
    fi
    number=$((number + 1))
done

# mpirun reaches the other node by this in place of ssh: HOST COMMAND...
cat >"$work/agent" <<END
#!/bin/sh
host=\$1
shift
name=$left
[ "\$host" = "$subnet.1" ] || name=$right
exec ip netns exec "\$name" unshare --uts sh -c "hostname \$name; \$*"
END
chmod +x "$work/agent"

# Who yields while it waits loses its core to others for long: only where ranks share cores.
yield=0
[ $((2 * ranks)) -le "$(nproc)" ] || yield=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if [ -n "$cut" ]; then
    # Keep-alive does not look after a connection with data under way: the count of retransmissions does.
    for name in "$left" "$right"; do
        ip netns exec "$name" sh -c 'echo 3 >/proc/sys/net/ipv4/tcp_retries2' 2>"$work/why" ||
            skip "$(head -n 1 "$work/why")"
    done
    (
        until grep -q loop "$cut" 2>/dev/null; do
            sleep 0.1
        done
        ip -n "$right" link set weft0 down
        date +"cut %s" >>"$cut"
    ) &
fi

ulimit -c 0
status=0
timeout -k 10 "$seconds" ip netns exec "$left" unshare --uts sh -c 'hostname "$0"; exec "$@"' "$left" \
    "$mpiexec" -np $((2 * ranks)) --host "$subnet.1:$ranks,$subnet.2:$ranks" --oversubscribe --bind-to none \
    --mca btl tcp,self,vader --mca btl_tcp_if_include "$subnet.0/24" --mca oob_tcp_if_include "$subnet.0/24" \
    --mca mpi_yield_when_idle "$yield" --mca plm_rsh_agent "$work/agent" "$@" || status=$?
if [ -n "$cut" ]; then
    for _ in $(seq 150); do
        remain=$(ip netns pids "$left"; ip netns pids "$right")
        [ -n "$remain" ] || break
        sleep 0.1
    done
    [ -z "$remain" ] || {
        echo "processes remain: $(ps -o pid=,args= -p $(echo $remain | tr ' ' ,))"
        status=99
    }
fi
exit $status
