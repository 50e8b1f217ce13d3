#!/bin/sh
# Builds, demonstrates and tests the project as it is here in a bare Debian: tools/debian.sh RELEASE FOLDER, where RELEASE is 12
# or 13; first without the CUDA toolkit, then with that of this machine, if it has one. `make proof-debian12` and
# `make proof-debian13` call it; only root may. The folder keeps Debian and the builds for the next time.
#
# DEBIAN_TOOLKIT=without or =with does one half. DEBIAN_MPI=mpich does neither, and runs the short suite under that Debian's
# MPICH (`make proof-mpich12`, `make proof-mpich13`). DEBIAN_TESTS="NAME ..." builds and runs tests of these names alone.
set -eu
case ${1-} in
12 | 13) ;;
*) echo "debian: release ${1-}: should be 12 or 13" >&2 && exit 2 ;;
esac
case ${DEBIAN_TOOLKIT-both} in
both | with | without) ;;
*) echo "debian: DEBIAN_TOOLKIT=$DEBIAN_TOOLKIT: should be with or without" >&2 && exit 2 ;;
esac
case ${DEBIAN_MPI-openmpi} in
openmpi | mpich) ;;
*) echo "debian: DEBIAN_MPI=$DEBIAN_MPI: should be openmpi or mpich" >&2 && exit 2 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
. "$here/enter.sh"
own_mounts "$0" "$@"
cd "$here/.."
release=$1 root=$2
mkdir -p "$root"
root=$(cd "$root" && pwd -P)
open_debian "$release" "$root"
mkdir -p "$root/weft"
find "$root/weft" -mindepth 1 -maxdepth 1 ! -name 'build*' -exec rm -rf {} + # what was removed since the last time
git ls-files -z | tar --null --files-from=- -cf - | tar -C "$root/weft" -xf -
[ -x "$root/usr/bin/make" ] || inside "$root" / sh -c "apt-get update && apt-get install -y --no-install-recommends make"

# half BUILD: the demo and the tests, in this folder of the project's.
half() {
    begin=$(date +%s)
    inside "$root" /weft make demo BUILD="$1" DEMO="--channels 16 --batch 16 --iterations 60 --out $1/demo"
    if [ -n "${DEBIAN_TESTS-}" ]; then
        inside "$root" /weft make configure BUILD="$1"
        inside "$root" /weft cmake --build "$1" --target $DEBIAN_TESTS
        inside "$root" /weft tools/test.sh "$1" --no-tests=error -R "^($(echo $DEBIAN_TESTS | tr ' ' '|'))(_[0-9]+)?\$"
    else
        inside "$root" /weft make test BUILD="$1"
    fi
    if [ -n "$toolkit" ]; then how="with the toolkit $toolkit"; else how="without a CUDA toolkit"; fi
    echo "debian: Debian $release $how: demo and tests passed in $(($(date +%s) - begin)) s"
}

toolkit=
if [ "${DEBIAN_MPI-}" = mpich ]; then
    begin=$(date +%s)
    inside "$root" /weft make proof-mpich MPICH_TESTS="${DEBIAN_TESTS-}"
    echo "debian: Debian $release under MPICH: tests passed in $(($(date +%s) - begin)) s"
    inside "$root" / dpkg-query -W -f '${Package} ${Version}\n' libdnnl-dev libmpich-dev libhdf5-dev gcc cmake
    exit
fi
if [ "${DEBIAN_TOOLKIT-}" != with ]; then
    rm -f "$root/usr/local/cuda" # of the last time
    half build
fi
if [ "${DEBIAN_TOOLKIT-}" != without ]; then
    mount_toolkit "$root"
    if [ -n "$toolkit" ]; then
        half build-cuda
    else
        echo "debian: this machine has no CUDA toolkit, so Debian $release was not tried with one" >&2
        [ "${DEBIAN_TOOLKIT-}" != with ] || exit 1
    fi
fi
inside "$root" / dpkg-query -W -f '${Package} ${Version}\n' libdnnl-dev libopenmpi-dev libhdf5-dev gcc cmake
