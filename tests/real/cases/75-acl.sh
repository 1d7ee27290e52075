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
    # Names the kernel remembers must not lead past a directory that was closed meanwhile: by mode, by ACL, and far down.
    # By way of sh: setpriv itself still holds capabilities when it runs the program.
    as_nobody() { setpriv --reuid=nobody --regid=nogroup --clear-groups sh -c 'exec "$@"' sh "$@"; }
    mkdir -p "$MNT/acl/open/in/deep" && echo z > "$MNT/acl/open/in/deep/z" && chmod -R a+rX "$MNT/acl/open"
    chmod 755 "$MNT"
    as_nobody cat "$MNT/acl/open/in/deep/z" > /dev/null || fail "a path open to everybody"
    chmod 700 "$MNT/acl/open/in"; cat "$MNT/acl/open/in/deep/z" > /dev/null
    as_nobody cat "$MNT/acl/open/in/deep/z" 2> /dev/null && fail "chmod 700 of a directory on the way is ignored"
    as_nobody stat "$MNT/acl/open/in/deep" > /dev/null 2>&1 && fail "stat below a closed directory"
    chmod 755 "$MNT/acl/open/in"; as_nobody cat "$MNT/acl/open/in/deep/z" > /dev/null || fail "opened again"
    setfacl -m u:nobody:r "$MNT/acl/open/in"; cat "$MNT/acl/open/in/deep/z" > /dev/null
    as_nobody cat "$MNT/acl/open/in/deep/z" 2> /dev/null && fail "an ACL that forbids searching is ignored"
    as_nobody ls "$MNT/acl/open/in" > /dev/null || fail "the ACL lets nobody list"
    setfacl -b "$MNT/acl/open/in"; chmod 711 "$MNT/acl/open/in"
    as_nobody ls "$MNT/acl/open/in" > /dev/null 2>&1 && fail "listing without read permission"
    as_nobody cat "$MNT/acl/open/in/deep/z" > /dev/null || fail "searching needs no read permission"
    as_nobody getfattr -d "$MNT/acl/f" > /dev/null || fail "xattrs of a readable file"
    setfattr -n user.x -v 1 "$MNT/acl/open/in/deep/z"
    as_nobody setfattr -n user.x -v 2 "$MNT/acl/open/in/deep/z" 2> /dev/null && fail "setting an xattr without write permission"
    as_nobody truncate -s 0 "$MNT/acl/open/in/deep/z" 2> /dev/null && fail "truncate without write permission"
    as_nobody touch "$MNT/acl/open/in/deep/z" 2> /dev/null && fail "utimes without write permission"
    as_nobody rm -f "$MNT/acl/open/in/deep/z" 2> /dev/null && fail "unlink without write permission"
    as_nobody mkdir "$MNT/acl/open/in/deep/new" 2> /dev/null && fail "mkdir without write permission"
    cp "$(type -P true)" "$MNT/acl/open/prog"; chmod 744 "$MNT/acl/open/prog"
    as_nobody "$MNT/acl/open/prog" 2> /dev/null && fail "exec without permission"
    chmod 755 "$MNT/acl/open/prog"; as_nobody "$MNT/acl/open/prog" || fail "exec with permission"
    chmod 755 "$MNT/acl/open" && as_nobody bash -c "cd '$MNT/acl/open/in' && cd deep && pwd" > /dev/null || fail "cd with permission"
    setpriv --reuid=nobody --regid=nogroup --clear-groups cat "$MNT/acl/f" > /dev/null || fail "the ACL lets nobody read"
    setpriv --reuid=games --regid=nogroup --clear-groups cat "$MNT/acl/f" 2> /dev/null && fail "games may not read"
    setpriv --reuid=nobody --regid=nogroup --clear-groups bash -c "echo no >> '$MNT/acl/f'" 2> /dev/null && fail "nobody may not write"
fi
rm -rf "$MNT/acl" "$REF/acl"
