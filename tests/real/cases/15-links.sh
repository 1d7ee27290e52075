# 65,000 names of one file, EMLINK for the next, and all gone again.
mkdir "$MNT/links"
perl -e '
  my $d = shift; open(my $h, ">", "$d/0") or die; close $h;
  my $n = 1; $n++ while $n < 66000 && link "$d/0", "$d/$n";
  my $why = $!;
  (stat "$d/0")[3] == $n or die "link count ", (stat _)[3], ", made $n\n";
  print "  $n links, then: $why\n";
  $n == 65000 && $!{EMLINK} or die "expected EMLINK at 65000\n";
  opendir(my $l, $d) or die; my $seen = grep { !/^\.\.?$/ } readdir $l; $seen == $n or die "readdir shows $seen\n";
' "$MNT/links" || fail "links"
rm -rf "$MNT/links"
