#!/bin/sh
# Installs what packages.txt lists and this machine lacks: tools/setup.sh [demo | planet | test | check | docs | mpich | proof] [--list]
# "demo": the packages to build and run; "planet": those and the data of make planet; "test", which is also meant without an
# argument: those that the tests need too;
# "check", "docs", "mpich" (of make proof-mpich) or "proof": those of that target as well. With --list it prints their names, and installs nothing.
set -eu
cd "$(dirname "$0")/.."
group=${1-test}
case $group in
demo) groups="" ;;
planet) groups=" planet " ;;
test) groups=" test " ;;
check | docs | mpich | proof) groups=" test $group " ;;
*) echo "setup: $group: should be demo, planet, test, check, docs, mpich or proof" >&2 && exit 2 ;;
esac
# listed WORDS: names of these groups, with a third word ("optional") or without one.
listed() {
    sed 's/#.*//' packages.txt |
        awk -v groups="$groups" -v words="$1" 'NF && (NF == 1 || index(groups, " " $2 " ")) && (NF > 2) == words { print $1 }'
}
optional=$(listed 1)
wanted=$(listed 0)
if [ "${2-}" = --list ]; then
    echo $wanted $optional
    exit
fi

if ! command -v dpkg-query >/dev/null; then
    echo "setup: this is not a Debian system; needed are the equivalents of:" $wanted >&2
    exit 0
fi

# Names that are not fully installed.
lacking() {
    for package; do
        status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || status=
        [ "$status" = installed ] || echo "$package"
    done
}
# Prints those of the packages that this distribution has.
offered() {
    for package; do
        ! apt-cache show "$package" >/dev/null 2>&1 || echo "$package"
    done
}
missing=$(echo $(lacking $wanted) $(offered $(lacking $optional)))
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ]; then
    root=env
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    root="sudo -n env"
else
    echo "setup: these packages are missing, and only root may install them. Please type:" >&2
    echo "    su -c 'apt-get update && apt-get install -y --no-install-recommends $missing'" >&2
    exit 1
fi

echo "setup: installing $missing"
install="apt-get install -y --no-install-recommends"
if ! $install --dry-run $missing >/dev/null 2>&1; then # no package lists yet
    $root apt-get update
    missing="$(lacking $wanted) $(offered $(lacking $optional))"
fi
$root DEBIAN_FRONTEND=noninteractive $install $missing
