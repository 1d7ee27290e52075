# tar both ways and rsync with everything; a second rsync finds nothing to do, also by checksum.
tar -S --xattrs --sort=name -C "$TREE" -cf "$REF/t.tar" .
mkdir "$MNT/tar" && tar --xattrs --warning=no-timestamp -C "$MNT/tar" -xpf "$REF/t.tar"
same "$TREE" "$MNT/tar"
rm -rf "$MNT/tar"
timed "rsync -aHAX" rsync -aHAXS "$TREE/" "$MNT/rsync/"
same "$TREE" "$MNT/rsync"
again=$(rsync -aHAXSn --itemize-changes --checksum --delete "$TREE/" "$MNT/rsync/")
[ -z "$again" ] || fail "rsync would do again: $(echo "$again" | head -5)"
rm -rf "$MNT/rsync" "$REF/t.tar"
