#!/usr/bin/env bash
# setup.sh [TOOLS_DIR]: what the real-program tests need, installed where missing: Debian packages by apt, pjdfstest and fsx by
# cargo into TOOLS_DIR (default: target/tools).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tools=${1:-$here/../../target/tools}
need=()
for p in attr:setfattr acl:setfacl fio:fio git:git rsync:rsync sqlite3:sqlite3 bc:bc fuse3:fusermount3 perl:perl util-linux:unshare iproute2:ip; do
    command -v "${p#*:}" > /dev/null || need+=("${p%%:*}")
done
if [ ${#need[@]} -gt 0 ]; then
    sudo=""; [ "$(id -u)" = 0 ] || sudo=sudo
    $sudo apt-get update -q && $sudo apt-get install -qy --no-install-recommends "${need[@]}"
fi
mkdir -p "$tools"
[ -x "$tools/bin/pjdfstest" ] || cargo install -q --root "$tools" pjdfstest --version 0.2.2 --locked
[ -x "$tools/bin/fsx" ] || cargo install -q --root "$tools" fsx --version 0.3.2 --locked
echo "tools in $tools"
