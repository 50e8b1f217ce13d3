# Functions to run a command in another Debian, for tools/bare.sh, tools/debian.sh and tools/deb.sh, which read this file:
# . tools/enter.sh. They run as root, in a mount namespace of their own; mounts go with it.

# Prints the folder of the CUDA toolkit, as CMake would find it; nothing if there is none.
toolkit_folder() {
    nvcc=
    for folder in "${CUDA_HOME-}" "${CUDA_PATH-}" /usr/local/cuda; do
        [ -n "$nvcc" ] || [ -z "$folder" ] || [ ! -x "$folder/bin/nvcc" ] || nvcc=$folder/bin/nvcc
    done
    [ -n "$nvcc" ] || nvcc=$(command -v nvcc) || return 0
    top=$("$nvcc" --dryrun -x cu -c /dev/null -o /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p') # also where nvcc is a wrapper
    [ -z "$top" ] || (cd "$top" && pwd -P)
}

# own_mounts COMMAND...: for root alone, the script once more with mounts of its own, which go with it.
own_mounts() {
    [ "$(id -u)" = 0 ] || { echo "$(basename "$1" .sh): only root can enter another Debian (chroot)" >&2 && exit 1; }
    [ -n "${WEFT_OWN_MOUNTS-}" ] || exec env WEFT_OWN_MOUNTS=1 unshare --mount --propagation private "$@"
}

# open_debian RELEASE ROOT: Debian 12 or 13 is in that folder, bare if it is new, with the kernel's file systems, a name server
# and, as an installed Debian has it, the machine's own name: MPI's start asks for it, and a name server that is slow under load
# held up mpirun and MPI_Init for 90 s. Tests make mounts of their own, which takes a root that is a mount itself.
open_debian() {
    mkdir -p "$2"
    if [ ! -x "$2/usr/bin/apt-get" ]; then
        case $1 in
        12) debootstrap --variant=minbase bookworm "$2" ;;
        13) debootstrap --variant=minbase trixie "$2" ;;
        esac
    fi
    mount --bind "$2" "$2"
    mount_system "$2"
    rm -rf "$2"/tmp/prte.* # sessions of killed jobs, whose process numbers come again
    cp /etc/resolv.conf "$2/etc/resolv.conf"
    echo "127.0.0.1 localhost $(hostname)" >"$2/etc/hosts"
}

# mount_system ROOT: the kernel's file systems.
mount_system() {
    for place in proc sys dev dev/shm; do
        mkdir -p "$1/$place"
        mount --rbind "/$place" "$1/$place"
    done
}

# mount_read_only FOLDER ROOT: the folder at its own place.
mount_read_only() {
    mkdir -p "$2$1"
    mount --bind "$1" "$2$1"
    mount -o remount,bind,ro "$2$1"
}

# mount_toolkit ROOT: the CUDA toolkit at its own place, and below /usr/local/cuda; where cuDNN's variable names another
# folder, that one too. A toolkit of Debian's packages, which lies in /usr, is none of these. Sets toolkit, empty if there is
# none.
mount_toolkit() {
    toolkit=$(toolkit_folder)
    [ "$toolkit" != /usr ] || toolkit=
    [ -n "$toolkit" ] || return 0
    mount_read_only "$toolkit" "$1"
    [ "$toolkit" = /usr/local/cuda ] || { rm -f "$1/usr/local/cuda" && ln -s "$toolkit" "$1/usr/local/cuda"; }
    [ ! -d "${CUDNN_ROOT-}" ] || mount_read_only "$(cd "$CUDNN_ROOT" && pwd -P)" "$1"
}

# inside ROOT FOLDER COMMAND...: runs the command in that folder. Of the environment it sees what a fresh login has, Weft's
# and oneDNN's variables, and those of processors.
inside() {
    root=$1 folder=$2
    shift 2
    path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    [ -z "${toolkit-}" ] || path=$path:/usr/local/cuda/bin
    for name in $(env | sed -n 's/^\(\(WEFT\|ONEDNN\|OMP\|TEST\)_[A-Z0-9_]*\|JOBS\|TERM\)=.*/\1/p'); do
        eval "set -- \"$name=\$$name\" \"\$@\""
    done
    chroot "$root" env -i PATH="$path" HOME=/root LANG=C.UTF-8 ${CUDNN_ROOT:+"CUDNN_ROOT=$CUDNN_ROOT"} \
        sh -c 'cd "$0" && exec env "$@"' "$folder" "$@"
}
