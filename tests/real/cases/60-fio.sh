# fio verify: random and sequential, 4 jobs, buffered, O_DIRECT with several requests under way, and by mmap; one file per job
# and one file for all; stripes of 64 KiB over 4 OSTs.
mkdir "$MNT/fio" && stripe "$MNT/fio" 4 64K
run() { # NAME OPTIONS...
    local name=$1; shift
    fio --name="$name" --directory="$MNT/fio" --numjobs=4 --size=24M --verify=crc32c --verify_fatal=1 --verify_dump=0 \
        --do_verify=1 --group_reporting --output="$WORK/fio.$name" "$@" || { tail -20 "$WORK/fio.$name" >&2; fail "fio $name"; }
    rm -f "$MNT/fio"/*
}
run seq --rw=write --bs=1M
run rand --rw=randwrite --bs=4k-64k
run randrw --rw=randrw --bs=4k
run unaligned --rw=randwrite --bs=1k-70k --bs_unaligned
# Requests under way that overlap are finished in any order, on the local disk too: without serialize_overlap fio takes that for damage.
run direct --rw=randwrite --bs=4k-128k --blockalign=4k --direct=1 --ioengine=libaio --iodepth=8 --serialize_overlap=1
run directfixed --rw=randwrite --bs=64k --direct=1 --ioengine=libaio --iodepth=16
run mmap --rw=randwrite --bs=4k --ioengine=mmap
run mmapseq --rw=write --bs=64k --ioengine=mmap
run shared --rw=randwrite --bs=16k --filename=shared --offset_increment=24M
rmdir "$MNT/fio"
