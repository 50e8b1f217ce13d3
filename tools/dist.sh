#!/bin/sh
# Writes the source archive of the last commit, BUILD/weft-VERSION.tar.xz, and prints its name: tools/dist.sh BUILD [--try].
# --try: also unpacks it, compares it with the tree's list of files, and configures it where there is no git.
set -eu
cd "$(dirname "$0")/.."
mkdir -p "$1"
version=$(git show HEAD:core/version.h | sed -n 's/^#define WF_VERSION_[A-Z]* //p' | paste -sd .)
name=weft-$version
archive=$(cd "$1" && pwd)/$name.tar.xz
git archive --format=tar --prefix="$name/" HEAD | xz -T0 >"$archive"
echo "$archive"
[ "${2-}" = --try ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -C "$work" -xf "$archive"
git ls-tree -r --name-only HEAD | LC_ALL=C sort >"$work/wanted"
(cd "$work/$name" && find . ! -type d | sed 's|^\./||' | LC_ALL=C sort) >"$work/there"
diff "$work/wanted" "$work/there" || { echo "above: files that the archive lacks (<), and that the tree lacks (>)"; exit 1; }
mkdir "$work/bin"
printf '#!/bin/sh\necho "the build asks for git" >&2\nexit 1\n' >"$work/bin/git"
chmod +x "$work/bin/git"
PATH="$work/bin:$PATH" cmake -S "$work/$name" -B "$work/build" -G Ninja -DWEFT_CUDA=OFF >"$work/cmake.log" 2>&1 &&
    PATH="$work/bin:$PATH" cmake --build "$work/build" --target weft_datasets >>"$work/cmake.log" 2>&1 ||
    { cat "$work/cmake.log"; exit 1; }
