#!/usr/bin/env bash
# run.sh --tree DIR --coral BIN [--group GROUP] [--keep] [TEST...]
#
# Runs xfstests, as built in DIR, on two mounts of one file system (TEST_DIR and SCRATCH_MNT are directories of it, each mounted by
# a client of its own), and compares with the list `expected` beside this script. Tests are named as generic/001; none: all of
# the group, `quick` unless said otherwise. Root. Everything mounted lives in a mount namespace of its own, and the users that
# xfstests wants are known there only.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
if [ "${CORAL_XFSTESTS_INSIDE:-}" != 1 ]; then
    [ "$(id -u)" = 0 ] || { echo "xfstests needs root: it mounts, and changes users" >&2; exit 2; }
    CORAL_XFSTESTS_INSIDE=1 exec unshare -m -n -p --fork --kill-child --mount-proc --propagation private -- "$0" "$@"
fi
ip link set lo up
tree="" bin="" group=quick keep="" tests=()
while [ $# -gt 0 ]; do
    case $1 in
        --tree) tree=$(realpath -m "$2"); shift ;;
        --coral) bin=$(realpath -m "$2"); shift ;;
        --group) group=$2; shift ;;
        --keep) keep=1 ;;
        -*) echo "unknown option $1" >&2; exit 2 ;;
        *) tests+=("$1") ;;
    esac
    shift
done
[ -x "$tree/check" ] && [ -x "$tree/ltp/fsstress" ] || { echo "${tree:-(no --tree)}: no built tree of xfstests: clone it there and run make" >&2; exit 2; }
[ -x "$bin" ] || { echo "${bin:-(no --coral)}: no program: name the coral to test, such as target/release/coral" >&2; exit 2; }
BASE=$(mktemp -d "${TMPDIR:-/tmp}/coral-xfstests.XXXXXX")
chmod 755 "$BASE"
mkdir "$BASE/bin" "$BASE/mnt" "$BASE/test" "$BASE/scratch" "$BASE/result"

stop() {
    if [ -n "${pid:-}" ]; then kill "$pid" 2> /dev/null || true; fi
    for m in "$BASE/test" "$BASE/scratch" "$BASE/mnt"; do umount "$m" 2> /dev/null || umount -l "$m" 2> /dev/null || true; done
    "$bin" down "$BASE/data" > /dev/null 2>&1 || true
    if [ -n "$keep" ] || [ -n "${kept:-}" ]; then echo "kept: $BASE (the results of xfstests are in $BASE/result)"; else rm -rf --one-file-system "$BASE" || true; fi
}
trap stop EXIT
trap 'exit 143' INT TERM HUP

# Users as xfstests wants them, in this mount namespace only.
cp /etc/passwd /etc/group "$BASE"
for user in fsgqa:5001 123456-fsgqa:5002 fsgqa2:5003; do
    echo "${user%:*}:x:${user#*:}:${user#*:}::/tmp:/bin/bash" >> "$BASE/passwd"
    echo "${user%:*}:x:${user#*:}:" >> "$BASE/group"
done
mount --bind "$BASE/passwd" /etc/passwd
mount --bind "$BASE/group" /etc/group
# mount(8) asks this helper for types fuse.NAME.
helper=$(realpath /sbin/mount.fuse)
printf '#!/bin/bash\nexec -a mount.fuse.coral %q "$@"\n' "$bin" > "$BASE/bin/mount.fuse"
# df says fuse.coral, xfstests wants to read fuse.
printf '#!/bin/bash\nset -o pipefail\n%q "$@" | sed "s/ fuse.coral / fuse /"\n' "$(command -v df)" > "$BASE/bin/df"
chmod 755 "$BASE/bin/mount.fuse" "$BASE/bin/df"
mount --bind "$BASE/bin/mount.fuse" "$helper"

"$bin" up "$BASE/data" --mount "$BASE/mnt" --osts 2 > "$BASE/up.log" 2>&1 || { cat "$BASE/up.log" >&2; exit 1; }
mkdir "$BASE/mnt/test" "$BASE/mnt/scratch"
nid=$("$bin" status "$BASE/data" | grep -o '[0-9.]*@tcp' | head -1)
cat > "$BASE/config" << EOF
export FSTYP=fuse
export FUSE_SUBTYP=.coral
export TEST_DEV=$nid:/coral/test
export TEST_DIR=$BASE/test
export SCRATCH_DEV=$nid:/coral/scratch
export SCRATCH_MNT=$BASE/scratch
export RESULT_BASE=$BASE/result
EOF
if [ ${#tests[@]} -gt 0 ]; then what=("${tests[@]}"); else what=(-g "$group"); fi
cd "$tree"
: > "$BASE/check.log"
PATH=$BASE/bin:$PATH HOST_OPTIONS=$BASE/config ./check -fuse "${what[@]}" < /dev/null > "$BASE/check.log" 2>&1 &
pid=$!
tail --pid=$pid -n +1 -f "$BASE/check.log" || true
wait $pid || true

# What differs from the list, which has in a line a test that fails and why.
awk '$1 ~ /^generic\// { print $1 }' "$HERE/expected" | sort > "$BASE/expected"
result() { sed -n "s/^$1: //p" "$BASE/check.log" | tr ' ' '\n' | grep / | sort -u || true; }
result Failures > "$BASE/failed"
result Ran > "$BASE/ran"
grep -qE '^(Passed all|Failed) [0-9]+ ' "$BASE/check.log" || { kept=1; echo "xfstests did not come to its end" >&2; exit 1; }
new=$(comm -23 "$BASE/failed" "$BASE/expected")
mended=$(comm -12 <(comm -23 "$BASE/ran" "$BASE/failed") "$BASE/expected")
echo "$(wc -l < "$BASE/ran") ran, $(wc -l < "$BASE/failed") failed, $(comm -12 "$BASE/failed" "$BASE/expected" | wc -l) of them as expected"
[ -z "$mended" ] || echo "passed or not run, though the list has them:" $mended
if [ -n "$new" ]; then
    kept=1
    for t in $new; do echo "--- $t"; tail -20 "$BASE/result/$t.out.bad" 2> /dev/null || true; done
    echo "failed and not on the list $HERE/expected: $new" >&2
    exit 1
fi
