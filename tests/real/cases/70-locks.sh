# flock and fcntl locks: exclusion between processes, waiting, and a signal that ends the wait.
f="$MNT/lock"; : > "$f"
(flock -x 9; touch "$WORK/held"; sleep 1) 9> "$f" &
holder=$!
until [ -e "$WORK/held" ]; do sleep 0.02; done
flock -n "$f" true && fail "flock: two exclusive holders"
flock -s -n "$f" true && fail "flock: shared beside exclusive"
rc=0; timeout -s INT 0.3 flock "$f" true || rc=$?
[ $rc -eq 124 ] || fail "flock: SIGINT did not end the wait (rc $rc)"
flock "$f" true || fail "flock: not granted after release"
wait $holder
# fcntl, by perl: F_SETLK is 6, F_SETLKW is 7 on Linux; struct flock packed for a 64-bit one.
perl -e '
  use Fcntl; my $f = shift; open(my $h, "+<", $f) or die;
  sub lk { my ($cmd, $type, $start, $len) = @_; return fcntl($h, $cmd, pack("s s x4 q q l x4", $type, 0, $start, $len, 0)); }
  lk(F_SETLK, F_WRLCK, 100, 50) or die "first lock: $!";
  my $child = fork // die;
  if (!$child) {
    open($h, "+<", $f) or exit 9;
    lk(F_SETLK, F_WRLCK, 120, 1) and exit 1;
    lk(F_SETLK, F_WRLCK, 150, 10) or exit 2;
    lk(F_SETLK, F_RDLCK, 0, 100) or exit 3;
    local $SIG{ALRM} = sub { die "alarm\n" }; alarm 1;
    eval { lk(F_SETLKW, F_WRLCK, 100, 1) and exit 4; };
    $@ eq "alarm\n" or exit 5;
    exit 0;
  }
  waitpid($child, 0); die "child: $?\n" if $?;
  my $l = pack("s s x4 q q l x4", F_WRLCK, 0, 0, 0, 0);
  lk(F_SETLK, F_UNLCK, 0, 0) or die; print "fcntl ok\n";
' "$f" || fail "fcntl locks"
rm -f "$f" "$WORK/held"
