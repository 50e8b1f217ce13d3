#!/bin/sh
# Installs what packages.txt lists and this machine lacks: tools/setup.sh [check|docs|proof]
# Without an argument the packages to build, test and run; with "check", "docs" or "proof" those of that target too.
set -eu
cd "$(dirname "$0")/.."
listed() {
    sed 's/#.*//' packages.txt | awk -v group="$1" -v all="${2-}" '(all && NF == 1) || (NF == 2 && $2 == group) { print $1 }'
}
optional=$(listed optional)
wanted=$(listed "${1-}" all)

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
# Those of them that this distribution has.
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
