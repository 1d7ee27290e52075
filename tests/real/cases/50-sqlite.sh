# sqlite under load: one writer, then four at once (fcntl locks), rollback journal and WAL (shared mmap); the same content
# as the same work on the local disk, and integrity_check says ok.
sql_load() {
    echo "PRAGMA journal_mode=$1; PRAGMA busy_timeout=60000; CREATE TABLE t(id INTEGER PRIMARY KEY, k TEXT, v BLOB); CREATE INDEX tk ON t(k);"
    echo "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<30000) INSERT INTO t SELECT i, printf('%08x', i*2654435761), zeroblob(i%200) FROM n;"
    echo "UPDATE t SET v=CAST(k||'-'||id AS BLOB) WHERE id%3=0; DELETE FROM t WHERE id%7=0; VACUUM;"
}
for mode in DELETE WAL; do
    for at in "$REF" "$MNT"; do
        sql_load $mode | sqlite3 -bail "$at/db.$mode" > /dev/null
        for w in 1 2 3 4; do
            (for i in $(seq 1 25); do echo "BEGIN IMMEDIATE; INSERT INTO t(k,v) SELECT 'w$w-$i-'||id, v FROM t WHERE id<40; COMMIT;"; done |
                sqlite3 -bail -cmd '.timeout 60000' "$at/db.$mode" > /dev/null) &
            pids="${pids:-} $!"
        done
        for p in $pids; do wait "$p" || fail "a writer failed ($mode, $at)"; done
        pids=""
        [ "$(sqlite3 "$at/db.$mode" 'PRAGMA integrity_check')" = ok ] || fail "integrity_check ($mode, $at)"
        sqlite3 "$at/db.$mode" "SELECT k, hex(v) FROM t ORDER BY k, hex(v)" | sha256sum > "$WORK/$(basename "$at").$mode"
    done
    cmp "$WORK/$(basename "$REF").$mode" "$WORK/$(basename "$MNT").$mode" || fail "content differs ($mode)"
    rm -f "$MNT"/db.* "$REF"/db.*
done
