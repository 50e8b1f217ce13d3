#!/bin/sh
# Proves that the packages which tests/gpu/run.sh --carry gathers are closed: unpacks them into bare systems, each made by
# `debootstrap --variant=minbase` with no other package, and asks ldd there for every library that a program or library of
# theirs needs: tests/gpu/closed.sh FOLDER [SYSTEM...]
# Systems: debian12, debian13 and ubuntu (24.04); all without a name, Ubuntu if UBUNTU_MIRROR names a mirror of its archive.
# The folder keeps the packages and the systems for the next time, 0.9 GB. Only root may.
#
# Parts of OpenMPI for networks (UCX, libfabric, PSM, verbs, netlink), which it leaves out where their libraries are not
# there, are not asked for: run.sh has it talk by shared memory.
#
# Ubuntu's archive is signed by keys of its own: UBUNTU_KEYS names their file, by default that of the package
# ubuntu-archive-keyring.
set -eu
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || { sed -n '4,5s/^# *//p' "$0" >&2 && exit 2; }
[ "$(id -u)" = 0 ] || { echo "closed: only root can enter another system (chroot)" >&2 && exit 1; }
networks="ucp|ucm|ucs|fabric|psm|ibverbs|nl"
mkdir -p "$1"
folder=$(cd "$1" && pwd -P)
shift
[ $# -gt 0 ] || set -- debian12 debian13 ${UBUNTU_MIRROR:+ubuntu}

# bare SYSTEM: makes it, unless it is there.
bare() {
    [ ! -e "$folder/$1/complete" ] || return 0
    rm -rf "${folder:?}/$1"
    case $1 in
    debian12) debootstrap --variant=minbase bookworm "$folder/$1" ;;
    debian13) debootstrap --variant=minbase trixie "$folder/$1" ;;
    # Older releases of debootstrap do not know the name; all of Ubuntu's are made as gutsy is.
    ubuntu)
        [ -n "${UBUNTU_MIRROR-}" ] || { echo "UBUNTU_MIRROR should name a mirror of Ubuntu's archive" && false; } &&
            debootstrap --variant=minbase "--keyring=${UBUNTU_KEYS-/usr/share/keyrings/ubuntu-archive-keyring.gpg}" noble \
                "$folder/$1" "$UBUNTU_MIRROR" gutsy
        ;;
    *) echo "closed: system $1: should be debian12, debian13 or ubuntu" >&2 && exit 2 ;;
    esac >"$folder/$1.log" 2>&1 || { tail -n 3 "$folder/$1.log" >&2 && echo "closed: $1 cannot be made" >&2 && exit 1; }
    touch "$folder/$1/complete"
}

# lacking SYSTEM: prints what ldd does not find there, once for each file that needs it.
lacking() {
    root=$folder/bare
    rm -rf "$root"
    cp -a "$folder/$1" "$root"
    for deb in "$folder"/debs/*.deb; do # as `unpack` of run.sh does it
        dpkg-deb --fsys-tarfile "$deb" | tar -x --skip-old-files --keep-directory-symlink -C "$root" --exclude './usr/share/doc*'
        dpkg-deb --fsys-tarfile "$deb" | tar -t | sed -n 's|^\./||; /\.so\(\.[0-9.]*\)\{0,1\}$/p; \|^usr/bin/.|p'
    done | sort -u >"$root/files"
    chroot "$root" /sbin/ldconfig
    # shellcheck disable=SC2016 # expanded there
    chroot "$root" /bin/sh -c 'while read -r file; do
            [ -f "/$file" ] && [ ! -L "/$file" ] && head -c 4 "/$file" | grep -q ELF || continue
            echo "/$file" >>/asked
            LC_ALL=C ldd "/$file" 2>&1 | sed -n "s|^[[:space:]]*\(.*not found.*\)|/$file: \1|p"
        done </files' | grep -Ev "/(lib)?mca_[a-z0-9_]+\.so[0-9.]*: lib($networks)[-._a-z0-9]*\.so" || [ $? = 1 ]
}

if [ -z "$(find "$folder/debs" -name '*.deb' 2>/dev/null | head -n 1)" ]; then
    mkdir -p "$folder/debs"
    # shellcheck disable=SC2046 # a list
    (cd "$folder/debs" && apt-get download -q $(sed 's/#.*//' "$OLDPWD/tests/gpu/packages.txt"))
fi
failed=0
for system; do
    bare "$system"
    lacking "$system" >"$folder/lacking"
    asked=$(wc -l <"$folder/bare/asked")
    if [ -s "$folder/lacking" ] || [ "$asked" -lt 40 ]; then
        echo "closed: in a bare $system, of $asked files asked, these lack something:"
        cat "$folder/lacking"
        failed=1
    else
        echo "closed: in a bare $system ldd finds all that $asked files need"
    fi
done
echo "closed: $(find "$folder/debs" -name '*.deb' | wc -l) packages of $(cat "$folder"/debs/*.deb | wc -c) bytes"
exit $failed
