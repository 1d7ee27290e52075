#!/usr/bin/perl
# gentree.pl DIR FILES SEED: a tree with everything `cp -a` should carry: modes (setuid, sticky, unreadable), owners, times
# with nanoseconds (also before 1970 and after 2038), hard links, symlinks (dangling, long), fifos, holes, odd and long names,
# empty and deep directories. Xattrs go to DIR.xattrs for `setfattr --restore`. The same seed makes the same tree.
use strict; use warnings; use Time::HiRes; use POSIX (); use Fcntl;

my ($dir, $files, $seed) = @ARGV;
die "usage: gentree.pl DIR FILES SEED\n" unless defined $seed;
my $state = $seed * 2654435761 % 4294967296 || 1;
sub rnd { my $n = shift;    # xorshift32: the same numbers with every perl
    $state ^= ($state << 13) & 0xffffffff; $state ^= $state >> 17; $state ^= ($state << 5) & 0xffffffff; return $state % $n; }
sub bytes { my $n = shift; my $s = pack("V*", map { rnd(4294967296) } 0 .. $n / 4); return substr($s, 0, $n); }

my $root = $> == 0;
mkdir $dir or die "$dir: $!"; chdir $dir or die;
open(my $xattrs, '>', "../" . (split m{/}, $dir)[-1] . ".xattrs") or die;
my @dirs = (".");
my @made;
my $pool = bytes(1 << 18);
my $dirs = int($files / 40) + 5;
for my $i (1 .. $dirs) {
    my $parent = $dirs[rnd(scalar @dirs)];
    $parent = $dirs[-1] if $i % 3 == 0 && length($dirs[-1]) < 900;
    my $d = "$parent/d$i"; mkdir $d or die "$d: $!"; push @dirs, $d;
}
for my $i (1 .. $files) {
    my $d = $dirs[rnd(scalar @dirs)];
    my $name = "f$i";
    $name = "with space $i\t\n\"'\\x" if $i % 97 == 0;
    $name = "\xc3\xbc\xe6\xbc\xa2$i" if $i % 89 == 0;
    $name = "L$i" . ("n" x (250 - length $i)) if $i % 101 == 0;
    my $f = "$d/$name";
    my $kind = $i == 11 ? 50 : rnd(100);
    if ($kind < 3 && @made) { link $made[rnd(scalar @made)], $f or die "link $f: $!"; next; }
    if ($kind < 6) { symlink($kind == 3 ? "no/such/$i" : $kind == 4 ? ("x/" x 500) . $i : "../f$i", $f) or die "symlink $f: $!";
        lchown($f) if $root && rnd(2); next; }
    if ($kind == 6 && $i % 5 == 0) { POSIX::mkfifo($f, 0600) or die; stamp($f); next; }
    sysopen(my $h, $f, O_WRONLY | O_CREAT | O_EXCL, 0600) or die "$f: $!";
    if ($kind == 7 && $i % 8 == 0 || $i == 11) {                           # holes
        for (0 .. 2) { sysseek($h, rnd(32) * 131072 + rnd(5000), 0); syswrite $h, substr($pool, rnd(1000), 1 + rnd(9000)); }
        truncate $h, 4 << 20 if $i % 2;
    } else {
        my $size = $kind < 20 ? 0 : $kind < 97 ? rnd(6000) : $kind < 99 ? rnd(200000) : 1 + rnd(3 << 20);
        for (my $at = 0; $at < $size; ) { my $n = $size - $at; my $o = rnd(1000); $n = length($pool) - $o if $n > length($pool) - $o;
            syswrite $h, substr($pool, $o, $n); $at += $n; }
    }
    close $h or die;
    push @made, $f;
    stamp($f);
    if ($i % 10 == 0) {
        (my $q = $f) =~ s/([^A-Za-z0-9_.\/-])/sprintf("\\%03o", ord $1)/ge;
        printf $xattrs "# file: %s\nuser.number=\"%d\"\nuser.bytes=0x%s\n\n", $q, $i, unpack("H*", substr($pool, rnd(1000), 1 + rnd(400)));
    }
}
stamp($_) for reverse @dirs[1 .. $#dirs];
close $xattrs or die;

sub lchown { system("chown", "-h", "7:8", "--", $_[0]) == 0 or die if rnd(10) == 0 }
sub stamp { my $f = shift;
    chown rnd(3000), rnd(3000), $f or die if $root && rnd(4) == 0;
    my @modes = (0644, 0600, 0755, 0444, 0000, 04755, 02755, 01777, 0711);
    my $m = $modes[rnd(scalar @modes)];
    $m |= 0700 if -d $f;
    chmod $m, $f or die;
    my @base = (1700000000, 1234567890, 86400, 4000000000, 1790000000);
    my $t = $base[rnd(scalar @base)] + rnd(100000) + rnd(1000000) / 1e6;
    Time::HiRes::utime($t + 5, $t, $f) or die "utime $f: $!";
}
