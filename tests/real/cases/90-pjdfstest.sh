# pjdfstest, whole. Its EROFS cases remount the file system read-only, which fails with EBUSY (also on ext4 and tmpfs) once
# its own `open` cases have leaked a descriptor: so they run first, alone, and count from there.
[ "$(id -u)" = 0 ] || { echo "  needs root: skipped"; return 0 2> /dev/null || exit 0; }
mkdir -p "$WORK/second" && mount -t tmpfs second "$WORK/second"
# mount(8) would ask mount.fuse3 to remount, which knows fresh mounts only.
printf '#!/bin/sh\nat=$2; shift 2; exec mount -i "$@" "$at"\n' > "$WORK/mount.fuse"; chmod +x "$WORK/mount.fuse"
for helper in /sbin/mount.fuse3 /sbin/mount.fuse.coral; do [ -e "$helper" ] && mount --bind "$WORK/mount.fuse" "$(readlink -f "$helper")"; done
chmod 755 "$MNT"; mkdir "$MNT/pjd"; chmod 755 "$MNT/pjd"
pjd() { "$TOOLS/bin/pjdfstest" -c "$HERE/pjdfstest.toml" -p "$MNT/pjd" -s "$WORK/second" "$@"; }
pjd erofs > "$WORK/pjd.erofs" 2>&1 || true
pjd > "$WORK/pjd.all" 2>&1 || true
umount "$WORK/second"
# A run that ends early fails nothing: each must have come to its end, and the whole one through all tests.
for log in pjd.erofs pjd.all; do grep -aq 'Summary' "$WORK/$log" || { tail -5 "$WORK/$log" >&2; fail "pjdfstest did not come to its end ($log)"; }; done
ran=$(grep -acE ' (ok|FAILED|skipped)$' "$WORK/pjd.all") || true
[ "$ran" -ge 398 ] || fail "pjdfstest ran $ran tests, not 398"
grep -a '^Summary' "$WORK/pjd.erofs" "$WORK/pjd.all" | sed 's/.*Summary/  Summary/'
# name, reason: what may fail or be left out. Keep in step with docs/semantics.md.
excluded=(
)
bad=""
for t in $(grep -ahE ' (FAILED|skipped)$' "$WORK/pjd.erofs" "$WORK/pjd.all" | awk '{print $1}' | sort -u); do
    case $t in *erofs*) grep -aqE "^$t +ok$" "$WORK/pjd.erofs" && continue;; esac
    for e in "${excluded[@]}"; do [ "${e%%:::*}" = "$t" ] && { echo "  excluded: $e"; continue 2; }; done
    # Skipped for want of a limit below 65,535 links: the test says so itself.
    [ "$t" = link::link_count_max ] && grep -aqE "^$t +skipped$" "$WORK/pjd.all" && { echo "  skipped by the test itself: $t"; continue; }
    bad="$bad $t"
done
for t in $bad; do grep -aA4 "^$t " "$WORK/pjd.all" | head -5 >&2; done
[ -z "$bad" ] || fail "pjdfstest:$bad"
rm -rf "$MNT/pjd"
