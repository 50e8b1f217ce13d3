#!/bin/sh
# Builds the Debian packages of the last commit, from its source archive and in a bare Debian, installs them into a second one,
# which has nothing of what builds them, runs their tests (debian/tests) there and removes them: tools/deb.sh RELEASE FOLDER,
# where RELEASE is 12 or 13. `make deb12` and `make deb13` call it; only root may. FOLDER/packages has what was built, FOLDER/build
# and FOLDER/clean keep the two Debians for the next time.
#
# DEB_STEPS="build try" does both; one word alone does one. DEB_BUILD_OPTIONS=noopt compiles in a third of the time, to try the
# packaging.
set -eu
case ${1-} in
12 | 13) ;;
*) echo "deb: release ${1-}: should be 12 or 13" >&2 && exit 2 ;;
esac
steps=" ${DEB_STEPS-build try} "
here=$(cd "$(dirname "$0")" && pwd)
. "$here/enter.sh"
own_mounts "$0" "$@"
cd "$here/.."
release=$1
mkdir -p "$2/packages"
home=$(cd "$2" && pwd -P)
install="env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends"
build_dep="env DEBIAN_FRONTEND=noninteractive apt-get build-dep -y --no-install-recommends ./"
# inside() has root and folder as its own.
version=$(sed -n 's/^#define WF_VERSION_[A-Z]* //p' core/version.h | paste -sd .)

# The packages, and what lintian says of them; its errors are errors.
build() {
    root=$home/build
    open_debian "$release" "$root"
    [ -x "$root/usr/bin/lintian" ] || inside "$root" / sh -c "apt-get update && $install build-essential debhelper lintian"
    rm -rf "$root/build" && mkdir "$root/build"
    archive=$(tools/dist.sh "$home" | tail -1)
    mv "$archive" "$root/build/weft_$version.orig.tar.xz"
    tar -C "$root/build" -xf "$root/build/weft_$version.orig.tar.xz"
    inside "$root" "/build/weft-$version" $build_dep
    inside "$root" "/build/weft-$version" DEB_BUILD_OPTIONS="terse parallel=${JOBS-$(nproc)} ${DEB_BUILD_OPTIONS-}" dpkg-buildpackage -us -uc >"$home/build.log" 2>&1 ||
        { tail -40 "$home/build.log"; exit 1; }
    inside "$root" /build sh -c 'lintian --allow-root --fail-on error --tag-display-limit 0 *.changes'
    rm -rf "$home/packages"
    mkdir "$home/packages"
    find "$root/build" -maxdepth 1 -type f -exec cp {} "$home/packages" \;
}

# What one of the tests' files depends on besides the packages.
test_needs() {
    sed -n 's/^Depends: //p' debian/tests/control | tr ',' '\n' | tr -d ' ' | grep -vE '^(libweft|weft-)' | sort -u
}

# Every file of the second Debian, but those in which apt and dpkg keep what they did.
files() {
    (cd "$root" && find . -xdev ! -path './proc/*' ! -path './sys/*' ! -path './dev/*' ! -path './build*' ! -path './tmp/*' \
        ! -path './run/*' ! -path './var/cache/*' ! -path './var/log/*' ! -path './var/lib/apt/*' ! -path './var/lib/dpkg/*' | sort)
}

remove_packages() {
    [ -z "$(inside "$root" / dpkg-query -W -f '${db:Status-Abbrev}\n' 'libweft*' 'weft-*' 2>/dev/null | grep -v '^un')" ] ||
        inside "$root" / DEBIAN_FRONTEND=noninteractive apt-get autopurge -y 'libweft*' 'weft-*'
}

try() {
    root=$home/clean
    open_debian "$release" "$root"
    [ -e "$root/usr/bin/mpirun" ] || inside "$root" / apt-get update
    inside "$root" / $install $(test_needs)
    remove_packages # of a time before that ended in between
    rm -rf "$root/build" && mkdir "$root/build"
    files >"$home/before"
    cp "$home"/packages/*.deb "$root/build"
    rm -f "$root"/build/*-dbgsym_*
    inside "$root" /build sh -c "$install ./*.deb"
    tar -C "$root/build" -xf "$home/packages/weft_$version.orig.tar.xz"
    for test in $(sed -n 's/^Tests: //p' debian/tests/control | tr ',' ' '); do
        inside "$root" "/build/weft-$version" "debian/tests/$test"
        echo "deb: Debian $release: the test $test passed"
    done
    remove_packages
    files >"$home/after"
    comm -13 "$home/before" "$home/after" >"$home/left"
    [ ! -s "$home/left" ] || { cat "$home/left" && echo "deb: above: what is left where the packages were removed" && exit 1; }
    echo "deb: Debian $release: nothing is left of the packages"
}

case $steps in *" build "*) build ;; esac
case $steps in *" try "*) try ;; esac
echo "deb: Debian $release: $(cd "$home/packages" && echo *.deb)"
