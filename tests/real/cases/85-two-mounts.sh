# A second mount over TCP (from the same name space): both always show what a model says, with everything they remember.
if [ "$KIND" != coral ]; then echo "  needs --coral: skipped"; return 0; fi
mkdir "$WORK/second"
"$BIN" mount "127.0.0.1@tcp:/coral$SUBDIR" "$WORK/second" --nid 127.0.0.2@tcp --foreground > "$WORK/second.log" 2>&1 & second=$!
for _ in $(seq 100); do mountpoint -q "$WORK/second" && break; kill -0 $second || break; sleep 0.1; done
mountpoint -q "$WORK/second" || { cat "$WORK/second.log" >&2; fail "the second mount did not come up"; }
rc=0
perl "$HERE/coherence.pl" "$MNT" "$WORK/second" "${COHERENCE_SECONDS:-60}" "${COHERENCE_SEED:-1}" || rc=$?
stores=$("$BIN" metrics "$WORK/second" | sed -n 's/^coral_llite_strided_read_stores_total.* //p')
echo "  blocks stored into the page cache: $stores"
kill -INT $second; wait $second || fail "the second mount ended with $?"
[ $rc -eq 0 ] || fail "the mounts disagree"
[ "${stores:-0}" -gt 0 ] || fail "nothing that was read ahead was stored into the page cache"
