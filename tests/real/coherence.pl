#!/usr/bin/perl
# coherence.pl A B SECONDS SEED: A and B are mounts of one file system. At every step one of them, at random, changes a name,
# attributes, content or a directory, and then both must show exactly what a model says: also what they had cached before. One larger
# file is read in blocks at one distance, through handles that stay open, which the client reads ahead and stores into the page cache.
use strict; use warnings; use Fcntl qw(:DEFAULT :flock :mode); use Time::HiRes 'time';
my ($ma, $mb, $seconds, $seed) = @ARGV; my @m = ($ma, $mb);
srand($seed);
my $base = "coherence"; mkdir "$m[0]/$base" or die "$base: $!";
my (%file, %dir); $dir{$_} = 1, mkdir("$m[rand 2]/$base/$_") || die "mkdir $_: $!" for map { "d$_" } 0 .. 3;
my ($step, $last) = (0, "");
sub lost { my ($what) = @_; print "step $step, seed $seed: $last\n  then $what\n"; exit 1; }
sub slurp { my $p = shift; open(my $h, '<', $p) or return undef; local $/; my $c = <$h>; return $c // ""; }
sub check { my ($p) = @_;
    for my $side (0, 1) { my $at = "$m[$side]/$base/$p"; my @s = lstat $at;
        if (!$file{$p}) { lost("$at is still there") if @s; next; }
        lost("$at: $!") unless @s;
        my $f = $file{$p};
        lost(sprintf "$at has mode %o, not %o", $s[2] & 07777, $f->{mode}) if ($s[2] & 07777) != $f->{mode};
        lost("$at has size $s[7], not " . length $f->{data}) if $s[7] != length $f->{data};
        my $c = slurp($at); lost("$at cannot be read: $!") unless defined $c;
        lost("$at has other content") if $c ne $f->{data}; } }
sub listed { my ($d) = @_; my $want = join ' ', sort map { m{^$d/(.*)} ? $1 : () } keys %file;
    for my $side (0, 1) { opendir(my $h, "$m[$side]/$base/$d") or lost("opendir $m[$side]/$base/$d: $!");
        my $got = join ' ', sort grep { !/^\.\.?$/ } readdir $h;
        lost("$m[$side]/$base/$d lists '$got', not '$want'") if $got ne $want; } }
sub any { my @k = sort keys %file; return $k[rand @k]; }
my ($big, @open) = ("", ()); my $bigmax = 3 << 20;
sub bigopen { my ($side, $flags) = @_; sysopen(my $h, "$m[$side]/$base/big", $flags, 0644) or lost("open big: $!"); return $h; }
sub bigwrite { my ($side, $at, $data) = @_; my $h = bigopen($side, O_WRONLY | O_CREAT); sysseek $h, $at, 0;
    (syswrite($h, $data) // -1) == length $data or lost("write big: $!"); close $h or lost("close big: $!");
    $big .= "\0" x ($at - length $big) if $at > length $big; substr($big, $at, length $data) = $data; }
sub strided { my ($side) = @_; my ($block, $apart) = @{([4096, 2], [4096, 2], [4096, 5], [8192, 3], [65536, 2])[rand 5]};
    $open[$side] = bigopen($side, O_RDONLY) if !$open[$side] || rand() < 0.3; my $at = $block * int rand 3;
    for (my $n = 0; $at < length $big && $n < 700; $n++, $at += $block * $apart) { sysseek $open[$side], $at, 0;
        my $got; defined sysread($open[$side], $got, $block) or lost("read big: $!");
        lost("$m[$side]/$base/big has other bytes from $at, read in blocks of $block") if $got ne substr($big, $at, $block); } }
bigwrite(0, 0, join '', map { pack("N", $_) x 1024 } 1 .. $bigmax / 4096); $bigmax += 65536;
my $end = time + $seconds; my %count;
while (time < $end) {
    $step++; my $side = int rand 2; my $at = "$m[$side]/$base";
    my $p = "d" . int(rand 4) . "/f" . int(rand 12); my $q = rand() < 0.7 && %file ? any() : $p;
    my @ops = qw(write append trunc chmod rename unlink overwrite list flock stride bigwrite bigcut); my $op = $ops[rand @ops]; $last = "$op $q ($p) on $m[$side]"; $count{$op}++;
    if ($op eq 'write') { my $d = join '', map { chr(33 + rand 90) } 1 .. rand(rand() < 0.1 ? 300000 : 3000);
        sysopen(my $h, "$at/$p", O_WRONLY | O_CREAT | O_TRUNC, 0644) or lost("open: $!"); length $d and (syswrite($h, $d) // -1) != length $d and lost("write: $!"); close $h or lost("close: $!");
        $file{$p} = { mode => $file{$p} ? $file{$p}{mode} : 0644, data => $d }; $q = $p; }
    elsif ($op eq 'append' && $file{$q}) { open(my $h, '>>', "$at/$q") or lost("open: $!"); print $h "more$step"; close $h or lost("close: $!"); $file{$q}{data} .= "more$step"; }
    elsif ($op eq 'overwrite' && $file{$q}) { my $o = int rand(1 + length $file{$q}{data}); open(my $h, '+<', "$at/$q") or lost("open: $!"); sysseek $h, $o, 0; syswrite $h, "<$step>"; close $h or lost("close: $!");
        my $d = \$file{$q}{data}; my $n = length "<$step>"; my $tail = length($$d) > $o + $n ? substr($$d, $o + $n) : ""; $$d = substr($$d, 0, $o) . "<$step>" . $tail; }
    elsif ($op eq 'trunc' && $file{$q}) { my $n = int rand 4000; truncate("$at/$q", $n) or lost("truncate: $!"); my $d = \$file{$q}{data}; $$d = length $$d >= $n ? substr($$d, 0, $n) : $$d . "\0" x ($n - length $$d); }
    elsif ($op eq 'chmod' && $file{$q}) { my $mode = (0600, 0644, 0400, 0755)[rand 4]; chmod($mode, "$at/$q") or lost("chmod: $!"); $file{$q}{mode} = $mode; }
    elsif ($op eq 'rename' && $file{$q} && $p ne $q) { rename("$at/$q", "$at/$p") or lost("rename: $!"); $file{$p} = delete $file{$q}; check($q); $q = $p; }
    elsif ($op eq 'unlink' && $file{$q}) { unlink("$at/$q") or lost("unlink: $!"); delete $file{$q}; }
    elsif ($op eq 'list') { listed("d" . int rand 4); }
    elsif ($op eq 'flock' && $file{$q}) { open(my $a, '<', "$at/$q") or lost("open: $!"); open(my $b, '<', "$m[1 - $side]/$base/$q") or lost("open: $!");
        flock($a, LOCK_EX | LOCK_NB) or lost("flock: $!"); flock($b, LOCK_EX | LOCK_NB) and lost("both mounts hold the lock"); flock($a, LOCK_UN); flock($b, LOCK_EX | LOCK_NB) or lost("flock after unlock: $!"); }
    elsif ($op eq 'stride') { strided($side); strided(1 - $side); }
    elsif ($op eq 'bigwrite') { strided($side) if rand() < 0.5; bigwrite(int rand 2, int rand $bigmax, chr(33 + rand 90) x (1 + rand 70000)); strided($_) for 0, 1; }
    elsif ($op eq 'bigcut') { my $n = int rand $bigmax; strided($side) if rand() < 0.5; truncate("$at/big", $n) or lost("truncate big: $!");
        $big = length $big >= $n ? substr($big, 0, $n) : $big . "\0" x ($n - length $big); strided($_) for 0, 1;
        bigwrite(int rand 2, length $big, "more$step" x 100000) if $n < 1 << 20; }
    check($q);
}
@open = (); unlink "$m[0]/$base/big" or lost("unlink big: $!");
listed($_) for keys %dir;
unlink "$m[0]/$base/$_" or lost("unlink $_: $!") for keys %file; rmdir "$m[1]/$base/$_" or lost("rmdir $_: $!") for keys %dir; rmdir "$m[0]/$base" or lost("rmdir: $!");
print "  $step steps: ", join(', ', map { "$_ $count{$_}" } sort keys %count), "\n";
