# A generated repository cloned, worked on, repacked and checked on the mount; the same commits as on the local disk.
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=c GIT_COMMITTER_EMAIL=c@example.org
commits() { # DIR: adds commits whose ids depend on content only
    local d=$1 i
    for i in $(seq 1 40); do
        mkdir -p "$d/dir$((i % 7))"
        seq "$i" $((i * 50)) > "$d/dir$((i % 7))/file$i"
        seq 1 "$i" >> "$d/common"
        git -C "$d" add -A
        GIT_AUTHOR_DATE="2020-01-01T00:00:$((i % 60))Z" GIT_COMMITTER_DATE="2020-01-01T00:00:$((i % 60))Z" git -C "$d" commit -qm "commit $i"
    done
}
git init -q -b main "$REF/repo" && commits "$REF/repo"
git clone -q "$REF/repo" "$MNT/clone" 2>&1
git -C "$MNT/clone" fsck --full --strict 2>&1
[ "$(git -C "$MNT/clone" rev-parse HEAD)" = "$(git -C "$REF/repo" rev-parse HEAD)" ] || fail "clone has another head"
git init -q -b main "$MNT/own" && commits "$MNT/own"
[ "$(git -C "$MNT/own" rev-parse HEAD)" = "$(git -C "$REF/repo" rev-parse HEAD)" ] || fail "the same commits have other ids"
git -C "$MNT/own" gc -q --aggressive --prune=now 2>&1
git -C "$MNT/own" fsck --full --strict 2>&1
git -C "$MNT/own" checkout -q HEAD~20 && git -C "$MNT/own" checkout -q main
[ -z "$(git -C "$MNT/own" status --porcelain)" ] || fail "git status is not clean"
diff -r -x .git "$REF/repo" "$MNT/own" || fail "work trees differ"
rm -rf "$MNT/clone" "$MNT/own" "$REF/repo"
