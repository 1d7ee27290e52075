# A cargo build on the mount (many small files, mmapped rlibs, an executable run from the mount), compared with the local one.
gen() {
    local d=$1 i
    mkdir -p "$d/src"
    printf '[package]\nname = "many"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n' > "$d/Cargo.toml"
    { for i in $(seq 1 40); do echo "mod m$i;"; done
      echo 'fn main() { let mut s = 0u64;'; for i in $(seq 1 40); do echo "s = s.wrapping_mul(31) ^ m$i::f($i);"; done; echo 'println!("{s}"); }'; } > "$d/src/main.rs"
    for i in $(seq 1 40); do
        printf 'pub fn f(x: u64) -> u64 { let v: Vec<u64> = (0..x*%d).map(|y| y ^ x).collect(); v.iter().sum::<u64>() }\n' "$i" > "$d/src/m$i.rs"
    done
}
unset CARGO_TARGET_DIR
gen "$REF/many"; gen "$MNT/many"
(cd "$REF/many" && cargo build -q --offline)
timed "cargo build" bash -c "cd '$MNT/many' && cargo build -q --offline"
[ "$("$REF/many/target/debug/many")" = "$("$MNT/many/target/debug/many")" ] || fail "the program built on the mount says something else"
out=$(cd "$MNT/many" && cargo build --offline 2>&1)
case "$out" in *Compiling*) fail "cargo builds again what it just built: mtimes are wrong";; esac
touch "$MNT/many/src/m3.rs"
out=$(cd "$MNT/many" && cargo build --offline 2>&1)
case "$out" in *Compiling*) ;; *) fail "cargo does not see a touched file";; esac
rm -rf "$MNT/many" "$REF/many"
