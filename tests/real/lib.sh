# Shared by the cases. $MNT: the mount under test (or a local directory); $REF: a directory on the local disk; $TREE: the
# generated tree; $TOOLS: where pjdfstest and fsx are. A case fails by `fail` or by any command that fails (set -e).

fail() { echo "FAIL: $*" >&2; exit 1; }

# Everything stat(2) says that a copy should keep, one record per file, sorted. Directories: no size and link count, which
# are each file system's own affair.
listing() {
    (cd "$1" && find . -mindepth 1 \( -type d -printf '%P\t%y %m %U %G - - %T@\n' \) -o -printf '%P\t%y %m %U %G %n %s %T@ %l\n') |
        LC_ALL=C sort
}

# All user xattrs, as getfattr prints them.
xattrs() { (cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 getfattr -h -d -e hex -m '^user\.' --) }

# Which files share an inode, by name.
links() { (cd "$1" && find . -type f -links +1 -printf '%i %P\n' | LC_ALL=C sort -k2 | awk '{ i=$1; $1=""; if (!(i in n)) n[i]=++c; print n[i] $0 }'); }

# Files whose blocks are far fewer than their size: they have holes.
sparse() { (cd "$1" && find . -type f -size +1M -printf '%b %s %P\n' | awk '$1*512 < $2/2 { $1=""; $2=""; print }' | LC_ALL=C sort); }

# same A B: the trees agree in names, content and everything above.
same() {
    # diff complains about fifos even when both are.
    { diff -r --no-dereference "$1" "$2" < /dev/null || true; } 2>&1 | { grep -v 'is a fifo while' || true; } > "$WORK/diff.out"
    [ ! -s "$WORK/diff.out" ] || { head -20 "$WORK/diff.out" >&2; fail "content differs"; }
    for what in listing xattrs links sparse; do
        $what "$1" > "$WORK/a.$what"; $what "$2" > "$WORK/b.$what"
        cmp -s "$WORK/a.$what" "$WORK/b.$what" || { diff "$WORK/a.$what" "$WORK/b.$what" | head -20 >&2; fail "$what differ"; }
    done
    [ -s "$WORK/a.sparse" ] || fail "the tree has no file with holes: the check proves nothing"
    [ -s "$WORK/a.xattrs" ] || fail "the tree has no xattrs: the check proves nothing"
}

# stripe DIR COUNT SIZE: sets the layout of new files there, where the file system has layouts.
stripe() { if [ -n "${LFS:-}" ]; then "$LFS" setstripe -c "$2" -S "$3" "$1"; fi; }

# Seconds a command took, to the report.
timed() { local what=$1 t0 t1; shift; t0=$(date +%s.%N); "$@"; t1=$(date +%s.%N); echo "  $what: $(echo "$t1 - $t0" | bc) s"; }
