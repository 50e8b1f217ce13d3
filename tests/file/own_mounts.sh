# For a test to source, with its arguments: it then runs again where its mounts are its own, with SIZE of memory mounted at
# $folder; or it is skipped. A test with a user's rights has them in a space of users of its own.
#
#     size=512k
#     . "$(dirname "$0")/own_mounts.sh"
if [ -z "${TEST_MOUNTS-}" ]; then
    export TEST_MOUNTS=1
    for users in "" "--user --map-root-user"; do
        unshare $users --mount true 2>/dev/null && exec unshare $users --mount "$0" "$@"
    done
    echo "skipped: no mount of one's own here (unshare)"
    exit 77
fi
folder=$(mktemp -d)
trap 'umount "$folder" 2>/dev/null || true; rmdir "$folder"' EXIT
mount -t tmpfs -o size=$size weft "$folder" || {
    echo "skipped: no file system in memory can be mounted"
    exit 77
}
