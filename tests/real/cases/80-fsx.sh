# fsx: 60,000 operations with mmap, punch and fallocate on a file striped 64 KiB over 4 OSTs; then two more seeds, shorter.
mkdir "$MNT/fsx" && stripe "$MNT/fsx" 4 64K
for run in "${FSX_OPS:-60000} 1" "20000 2" "20000 3"; do
    set -- $run
    timed "fsx $1 operations, seed $2" "$TOOLS/bin/fsx" -N "$1" -S "$2" -f "$HERE/fsx.toml" -P "$WORK" "$MNT/fsx/file$2" > "$WORK/fsx.$2" 2>&1 ||
        { tail -40 "$WORK/fsx.$2" >&2; fail "fsx: rerun with fsx -N $1 -S $2 -f tests/real/fsx.toml FILE"; }
    tail -1 "$WORK/fsx.$2"
done
rm -rf "$MNT/fsx"
