#!/usr/bin/env bash
# run.sh --coral BIN | --memfs BIN | --local  [--tools DIR] [--files N] [--keep] [CASE...]
#
# Runs real programs (cases/*.sh) on a mount and compares with the local disk. The mount lives in a mount namespace of its
# own (and a network name space: ports collide with nobody), so nothing outlives the run. `--coral` starts `coral up`; `--memfs` the FUSE layer's in-memory example; `--local` a
# plain directory (which checks the cases themselves). Cases are named by a part of their file name; none: all.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
if [ "${CORAL_REAL_INSIDE:-}" != 1 ]; then
    # An ordinary user gets a user namespace as well; cases that need several users then say so.
    if [ "$(id -u)" = 0 ]; then ns=(-m -n); else ns=(-m -n --map-root-user); fi
    CORAL_REAL_INSIDE=1 exec unshare "${ns[@]}" --propagation private -- "$0" "$@"
fi
ip link set lo up
kind="" bin="" TOOLS=$HERE/../../target/tools files=20000 keep="" cases=()
while [ $# -gt 0 ]; do
    case $1 in
        --coral) kind=coral bin=$(realpath "$2"); shift ;;
        --memfs) kind=memfs bin=$(realpath "$2"); shift ;;
        --local) kind=local ;;
        --tools) TOOLS=$(realpath "$2"); shift ;;
        --files) files=$2; shift ;;
        --keep) keep=1 ;;
        -*) echo "unknown option $1" >&2; exit 2 ;;
        *) cases+=("$1") ;;
    esac
    shift
done
[ -n "$kind" ] || { sed -n 's/^# \?//p' "$0" | sed -n 2,7p; exit 2; }
BASE=$(mktemp -d "${TMPDIR:-/tmp}/coral-real.XXXXXX")
MNT=$BASE/mnt REF=$BASE/ref WORK=$BASE/work TREE=$BASE/tree LFS="" SUBDIR="" pid=""
KIND=$kind BIN=$bin
export KIND BIN HERE TOOLS MNT REF WORK TREE LFS SUBDIR
chmod 755 "$BASE"; mkdir "$MNT" "$REF" "$WORK" "$BASE/bin"

stop() {
    if [ -n "$SUBDIR" ] && mountpoint -q "$MNT"; then umount -l "$MNT"; fi
    if [ -n "$pid" ]; then
        kill -INT "$pid" 2> /dev/null || true
        for _ in $(seq 100); do kill -0 "$pid" 2> /dev/null || break; sleep 0.1; done
        kill -KILL "$pid" 2> /dev/null && echo "the file system did not end on SIGINT within 10 s" >&2
    fi
    if mountpoint -q "$MNT"; then umount -l "$MNT"; fi
    if [ -n "$keep" ]; then echo "kept: $BASE"; else rm -rf "$BASE"; fi
}
trap stop EXIT
trap 'exit 143' INT TERM HUP

# With CORAL_ROOT_STRIPES the cases work in a directory in so many shards (with CORAL_UP_FLAGS='--mdts N'), as are all that
# they make in it.
FS=$MNT
if [ -n "${CORAL_ROOT_STRIPES:-}" ]; then FS=$BASE/fs SUBDIR=/all; mkdir "$FS"; fi
case $kind in
    coral)
        ln -s "$bin" "$BASE/bin/lfs"; LFS=$BASE/bin/lfs
        # shellcheck disable=SC2086
        "$bin" up "$BASE/data" --mount "$FS" --foreground ${CORAL_UP_FLAGS:-} > "$WORK/coral.log" 2>&1 & pid=$! ;;
    local) [ "$(id -u)" = 0 ] && truncate -s 4G "$BASE/img" && mkfs.ext4 -q "$BASE/img" && mount -o loop "$BASE/img" "$MNT" && rmdir "$MNT/lost+found" ;;
    memfs) "$bin" "$MNT" ${MEMFS_FLAGS:-} > "$WORK/coral.log" 2>&1 & pid=$! ;;
esac
if [ -n "$pid" ]; then
    for _ in $(seq 300); do
        mountpoint -q "$FS" && break
        kill -0 "$pid" 2> /dev/null || { cat "$WORK/coral.log" >&2; echo "the file system did not start" >&2; exit 1; }
        sleep 0.1
    done
    mountpoint -q "$FS" || { cat "$WORK/coral.log" >&2; echo "not mounted within 30 s" >&2; exit 1; }
fi

if [ -n "$SUBDIR" ]; then
    "$LFS" mkdir -c "$CORAL_ROOT_STRIPES" "$FS$SUBDIR"
    "$LFS" setdirstripe -D -c "$CORAL_ROOT_STRIPES" --max-inherit -1 "$FS$SUBDIR"
    mount --bind "$FS$SUBDIR" "$MNT"
fi

echo "tree of $files files"
perl "$HERE/gentree.pl" "$TREE" "$files" 42
(cd "$TREE" && setfattr --restore=../tree.xattrs)

failed=() ran=0
for c in "$HERE"/cases/*.sh; do
    name=$(basename "$c" .sh)
    if [ ${#cases[@]} -gt 0 ]; then
        hit=""; for want in "${cases[@]}"; do case $name in *$want*) hit=1 ;; esac; done
        [ -n "$hit" ] || continue
    fi
    ran=$((ran + 1)) t0=$(date +%s.%N)
    # Not as the condition itself: bash would ignore `set -e` inside.
    set +e
    (set -euo pipefail; . "$HERE/lib.sh"; cd "$WORK"; . "$c") > "$WORK/$name.log" 2>&1 < /dev/null
    rc=$?
    set -e
    if [ $rc -eq 0 ]; then
        printf 'ok    %-14s %6.1f s\n' "$name" "$(echo "$(date +%s.%N) - $t0" | bc)"; grep '^  ' "$WORK/$name.log" | head -20 || true
    else
        failed+=("$name"); printf 'FAIL  %-14s (exit %d)\n' "$name" $rc; tail -40 "$WORK/$name.log"
        [ -z "$pid" ] || kill -0 "$pid" 2> /dev/null || { echo "the file system died:"; tail -40 "$WORK/coral.log"; break; }
        rm -rf "${MNT:?}"/* 2> /dev/null || true
    fi
done
[ $ran -gt 0 ] || { echo "no case matches ${cases[*]}" >&2; exit 2; }
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}; rerun one with: tests/real/run.sh --$kind ${bin:+$bin }--keep ${failed[0]}"; exit 1
fi
if [ -n "$pid" ] && [ -n "$(ls -A "$MNT")" ]; then echo "left on the mount: $(ls -A "$MNT" | head)"; exit 1; fi
echo "all $ran cases passed"
