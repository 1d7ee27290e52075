# POSIX ACLs: set, inherited by default ACLs, chmod's mask, permissions by ACL; getfacl as on the local disk.
acl() {
    local d=$1
    mkdir "$d/acl" && chmod 755 "$d/acl" && (
        cd "$d/acl"; umask 027
        echo x > f && setfacl -m u:nobody:r,g:daemon:rw,m::rw f
        mkdir sub && setfacl -d -m u:nobody:rwx,g::rx,o::- sub
        echo y > sub/new; mkdir sub/dir; mkfifo sub/fifo
        chmod 640 f; cp -a f g; setfacl -b g; chmod g-w sub/new
        find . | LC_ALL=C sort | xargs getfacl; stat -c '%n %a' f g sub sub/*
    )
}
setfacl -m u:nobody:r "$REF" 2> /dev/null && setfacl -b "$REF" || { echo "  the local disk has no ACLs: compared with nothing"; REF_ACL=no; }
acl "$MNT" > "$WORK/acl.mnt"
if [ "${REF_ACL:-}" != no ]; then acl "$REF" > "$WORK/acl.ref"; diff "$WORK/acl.ref" "$WORK/acl.mnt" || fail "ACLs differ"; fi
if [ "$(id -u)" = 0 ]; then
    setpriv --reuid=nobody --regid=nogroup --clear-groups cat "$MNT/acl/f" > /dev/null || fail "the ACL lets nobody read"
    setpriv --reuid=games --regid=nogroup --clear-groups cat "$MNT/acl/f" 2> /dev/null && fail "games may not read"
    setpriv --reuid=nobody --regid=nogroup --clear-groups bash -c "echo no >> '$MNT/acl/f'" 2> /dev/null && fail "nobody may not write"
fi
rm -rf "$MNT/acl" "$REF/acl"
