#!/bin/sh
# Runs a command as a bare machine would: tools/bare.sh [demo | test] COMMAND...
# It sees what that group of packages.txt brings (without a name: test), Debian's essential packages, the CUDA toolkit if there
# is one, this tree at its own place, and nothing else: no ccache, lld or clang, none of pip's packages, no file that no package
# has. It may write to this tree and to folders for temporary files, which are gone afterwards.
#
# Exit code 77 and a line that says why where such a view is impossible, else the command's own. The root of the view is made of
# hard links, or of copies where /usr is another file system, and cannot be written to.
set -eu
tree=$(cd "$(dirname "$0")/.." && pwd -P)
. "$tree/tools/enter.sh"

impossible() {
    echo "bare: a view of packages.txt alone is impossible: $*" >&2
    exit 77
}

if [ "${1-}" = within ]; then # in mounts of its own: within ROOT COMMAND...
    root=$2
    shift 2
    mount --bind "$root" "$root" # tests make mounts of their own, which takes a root that is a mount itself
    mount_system "$root"
    mount_toolkit "$root"
    mkdir -p "$root$tree"
    mount -o remount,bind,ro "$root"
    for place in tmp var/tmp run root; do # before the tree, which may lie in one of them
        mount --bind "$root.$(echo $place | tr / .)" "$root/$place"
    done
    mkdir -p "$root$tree"
    mount --bind "$tree" "$root$tree"
    exit_code=0
    inside "$root" "$tree" "$@" || exit_code=$?
    exit $exit_code
fi

group=test
case ${1-} in
demo | test) group=$1 && shift ;;
esac
[ $# -gt 0 ] || { echo "bare: no command; usage: tools/bare.sh [demo | test] COMMAND..." >&2 && exit 2; }
command -v dpkg-query >/dev/null || impossible "this is not a Debian system"
[ "$(id -u)" = 0 ] || impossible "only root may change its root"
unshare --mount --propagation private true 2>/dev/null || impossible "no mounts are allowed here (unshare --mount)"
"$tree/tools/setup.sh" "$group"

scratch=$(mktemp -d /var/tmp/weft-bare.XXXXXX)
trap 'rm -rf --one-file-system "$scratch"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
root=$scratch/root
mkdir "$root" "$root.root"
mkdir -m 1777 "$root.tmp" "$root.var.tmp"
mkdir -m 755 "$root.run"

# Names of packages, and their files. A toolkit of Debian's packages is one of them, as are cuDNN and NCCL.
toolkit=$(toolkit_folder)
wanted=$("$tree/tools/setup.sh" "$group" --list)
[ -z "$toolkit" ] || wanted="$wanted $(dpkg-query -W -f '${Package}\n' 'libcudnn*' 'libnccl*' 2>/dev/null | tr '\n' ' ')"
[ "$toolkit" != /usr ] || wanted="$wanted nvidia-cuda-toolkit"
dpkg-query -W -f '${db:Status-Status}\t${Package}\t${Essential}\t${Priority}\t${Pre-Depends}, ${Depends}\t${Provides}\n' |
    sed -n 's/^installed\t//p' >"$scratch/installed"
awk -v wanted="apt $wanted" -f "$tree/tools/closure.awk" "$scratch/installed" >"$scratch/closure"

db=/var/lib/dpkg
mkdir -p "$root$db/info"
while read -r package; do
    for list in "$db/info/$package".list "$db/info/$package":*.list; do
        [ ! -e "$list" ] || { cat "$list" && cp "${list%.list}".* "$root$db/info/"; }
    done
done <"$scratch/closure" >"$scratch/lists"
merged=
for folder in bin sbin lib lib32 lib64 libx32; do # links into /usr, under which packages still list their files
    [ ! -h "/$folder" ] || { ln -s "$(readlink "/$folder")" "$root/$folder" && merged="$merged|$folder"; }
done
[ -z "$merged" ] || sed -i -E "s#^/(${merged#|})(/|\$)#/usr/\1\2#" "$scratch/lists"
sed -i '/^\/\.$/d' "$scratch/lists"
sort -u "$scratch/lists" >"$scratch/files"

# Folders first, then files and links.
tr '\n' '\0' <"$scratch/files" | xargs -0 stat -c '%F|%n' 2>/dev/null >"$scratch/kinds" || true # packages list what may be gone
sed -n 's#^directory|/##p' "$scratch/kinds" | tr '\n' '\0' | (cd "$root" && xargs -0 mkdir -p)
hard=--link
ln /usr/bin/env "$scratch/env" 2>/dev/null || hard=--reflink=auto
sed -n '/^directory|/d; s#^[^|]*|/##p' "$scratch/kinds" | tr '\n' '\0' |
    (cd / && xargs -0 cp --no-dereference --preserve=all $hard --parents -t "$root")

# What Debian writes when it installs packages: who is there, alternatives (/usr/bin/cc) among what is here, the cache of the
# linker, and dpkg's own list, by which tools/setup.sh sees that nothing is missing.
for file in passwd group nsswitch.conf hosts hostname resolv.conf localtime shells; do
    rm -f "$root/etc/$file" # if it is a link to the one that is read
    [ ! -e "/etc/$file" ] || cp "/etc/$file" "$root/etc/"
done
ln -sf /proc/mounts "$root/etc/mtab"
(cd "$root" && mkdir -p usr/local/bin etc/alternatives var/log "${db#/}/updates" tmp var/tmp run root)
cp -a "$db/alternatives" "$root$db/"
awk 'FNR == NR { taken[$1]; next }
    /^Package: / { shown = $2 in taken }
    shown' "$scratch/closure" "$db/status" >"$root$db/status"
[ ! -e "$db/arch" ] || cp "$db/arch" "$root$db/"
cp "$db/info/format" "$root$db/info/"
[ -e "$root/usr/bin/sh" ] || ln -s dash "$root/usr/bin/sh"
for file in "$db"/alternatives/*; do
    here=
    for choice in $(sed -n 's#^\(/.*\)#\1#p' "$file"); do
        [ ! -e "$root$choice" ] || here=$choice
    done
    [ -z "$here" ] || echo "${file##*/}"
done >"$scratch/alternatives"
chroot "$root" sh -c 'while read -r name; do update-alternatives --quiet --auto "$name"; done' <"$scratch/alternatives" \
    2>"$scratch/complaints" || true # about those of packages that are not here
chroot "$root" ldconfig

exit_code=0
unshare --mount --propagation private "$0" within "$root" "$@" || exit_code=$?
exit $exit_code
