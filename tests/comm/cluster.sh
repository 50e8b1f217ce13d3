#!/bin/sh
# Runs a program over virtual nodes of this machine (network namespaces, whose links "weft0" meet in a bridge):
# tests/comm/cluster.sh [-r RATE] [-b BURST] [-n RANKS] [-t SECONDS] [-c FILE] MPIEXEC PROGRAM [ARGUMENT...]
# RANKS are those of each node: 2+1, or 1+2+1; a single number is that of two nodes (default 2). RATE makes the links
# slow, as tc writes it: 1gbit; after a pause so many bytes go at once (BURST, default 256k). The last node is cut off once FILE says "loop". Everything is removed at the end, also
# after a failure. Exits with the program's code, 124 past the time, 77 where there can be no namespaces.
# A host is called by its links, as virtual-1gbit-72k-1, in every run alike: a program may keep what it measured under the name.
set -eu
rate= burst=256k ranks=2 seconds=240 cut=
while getopts r:b:n:t:c: option; do
    case $option in
    r) rate=$OPTARG ;;
    b) burst=$OPTARG ;;
    n) ranks=$OPTARG ;;
    t) seconds=$OPTARG ;;
    c) cut=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
mpiexec=$1
shift
case $ranks in
*+*) ;;
*) ranks=$ranks+$ranks ;;
esac

skip() {
    echo "SKIP: no virtual nodes here: $1"
    exit 77
}

switch=weft$$ subnet=10.71.0 nodes= hosts= total=0
for n in $(echo "$ranks" | tr + ' '); do
    number=$(($(echo "$nodes" | wc -w) + 1))
    nodes="$nodes $switch-$number"
    hosts="$hosts$subnet.$number slots=$n
"
    total=$((total + n))
    last=$switch-$number
done
first=$switch-1
# A name of a host has letters, digits and '-'.
host=virtual-$(printf '%s' "${rate:+$rate-$burst-}" | tr -c '[:alnum:]-' -)
work=$(mktemp -d)
printf '%s' "$hosts" >"$work/hosts"

remove() {
    for name in $nodes "$switch"; do
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
# Runs a command that a machine may refuse.
try() {
    "$@" 2>"$work/why" || skip "$(head -n 1 "$work/why")"
}

try ip netns add "$switch"
try ip -n "$switch" link add bridge type bridge
try ip -n "$switch" link set bridge up
number=1
for name in $nodes; do
    try ip netns add "$name"
    try ip -n "$name" link add weft0 type veth peer name "port$number" netns "$switch"
    ip -n "$switch" link set "port$number" master bridge
    ip -n "$switch" link set "port$number" up
    ip -n "$name" addr add "$subnet.$number/24" dev weft0
    ip -n "$name" link set lo up
    ip -n "$name" link set weft0 up
    [ -z "$rate" ] || try ip netns exec "$name" tc qdisc add dev weft0 root tbf rate "$rate" burst "$burst" latency 50ms
    number=$((number + 1))
done

# mpirun reaches the other node by this in place of ssh: HOST COMMAND...
cat >"$work/agent" <<END
#!/bin/sh
host=\$1
shift
name=$switch-\${host##*.}
exec ip netns exec "\$name" unshare --uts sh -c "hostname $host\${host##*.}; \$*"
END
chmod +x "$work/agent"

# A rank that yields while it waits loses its core to others for long: only where ranks share cores.
yield=0
[ $total -le "$(nproc)" ] || yield=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if [ -n "$cut" ]; then
    # Keep-alive does not look after a connection with data under way: the count of retransmissions does.
    for name in $nodes; do
        try ip netns exec "$name" sh -c 'echo 3 >/proc/sys/net/ipv4/tcp_retries2'
    done
    (
        until grep -q loop "$cut" 2>/dev/null; do
            sleep 0.1
        done
        ip -n "$last" link set weft0 down
        date +"cut %s" >>"$cut"
    ) &
fi

# A file, since OpenMPI 5 takes one slot of its own node whatever --host says.
ulimit -c 0
status=0
timeout -k 10 "$seconds" ip netns exec "$first" unshare --uts sh -c 'hostname "$0"; exec "$@"' "${host}1" \
    "$mpiexec" -np $total --hostfile "$work/hosts" --map-by slot:oversubscribe --bind-to none \
    --mca btl tcp,self,vader --mca btl_tcp_if_include "$subnet.0/24" --mca oob_tcp_if_include "$subnet.0/24" \
    --mca mpi_yield_when_idle "$yield" --mca plm_rsh_agent "$work/agent" "$@" || status=$?
if [ -n "$cut" ]; then
    for _ in $(seq 150); do
        remain=$(for name in $nodes; do ip netns pids "$name"; done)
        [ -n "$remain" ] || break
        sleep 0.1
    done
    [ -z "$remain" ] || {
        echo "processes remain: $(ps -o pid=,args= -p $(echo $remain | tr ' ' ,))"
        status=99
    }
fi
exit $status
