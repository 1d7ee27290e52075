# cp -a of a tree of >= 20,000 files, compared in everything; then removed to the last name.
timed "cp -a $(find "$TREE" | wc -l) files" cp -a "$TREE" "$MNT/cp"
same "$TREE" "$MNT/cp"
# And back, from the mount.
timed "cp -a back" cp -a "$MNT/cp" "$REF/back"
same "$TREE" "$REF/back"
timed "rm -rf" rm -rf "$MNT/cp"
[ ! -e "$MNT/cp" ] || fail "rm -rf left something"
rm -rf "$REF/back"
