#!/bin/sh
# Builds and tests the project as it is here under Debian 13, in a folder of its own: tools/debian13.sh FOLDER. `make
# proof-debian13` calls it; only root may. The folder keeps Debian and the build for the next time.
set -eu
[ "$(id -u)" = 0 ] || { echo "debian13: only root can enter another Debian (chroot)" >&2; exit 1; }
# Mounts of its own, which go with it.
[ -n "${WEFT_OWN_MOUNTS-}" ] || exec env WEFT_OWN_MOUNTS=1 unshare --mount --propagation private "$0" "$@"
cd "$(dirname "$0")/.."
root=$1
mkdir -p "$root"
root=$(cd "$root" && pwd)
[ -x "$root/usr/bin/apt-get" ] || debootstrap --variant=minbase trixie "$root"

mount --bind "$root" "$root" # tests make mounts of their own, which takes a root that is a mount itself
for place in proc sys dev dev/shm; do
    mount --rbind "/$place" "$root/$place"
done
rm -rf "$root"/tmp/prte.* # sessions of killed jobs, whose process numbers come again
cp /etc/resolv.conf "$root/etc/resolv.conf"
mkdir -p "$root/weft"
find "$root/weft" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} + # what was removed since the last time
git ls-files -z | tar --null --files-from=- -cf - | tar -C "$root/weft" -xf -

inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 sh -c "cd /weft && $*"; }
inside "apt-get update && apt-get install -y --no-install-recommends make"
inside "make demo DEMO='--channels 16 --batch 16 --iterations 60 --out build/demo'"
inside "make test"
inside "dpkg-query -W -f '\${Package} \${Version}\n' libdnnl-dev libopenmpi-dev libhdf5-dev gcc cmake"
