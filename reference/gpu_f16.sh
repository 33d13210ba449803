#!/bin/sh
# The tests of limpid-gpu on a newer Mesa than Debian 12 has, whose software Vulkan multiplies matrices of f16: in a
# folder with Debian 13 and its backports (Mesa 26), as root.
#
#   sh reference/gpu_f16.sh /opt/trixie
set -eu
check=$(mktemp)
root=${1:?a folder for Debian 13}
here=$(cd "$(dirname "$0")/.." && pwd)
if ! [ -e "$root/usr/share/vulkan/icd.d" ]; then
  debootstrap --variant=minbase trixie "$root"
  sed 's/trixie/trixie-backports/' "$root/etc/apt/sources.list" > "$root/etc/apt/sources.list.d/backports.list"
  chroot "$root" apt-get update
  chroot "$root" apt-get install -y --no-install-recommends -t trixie-backports mesa-vulkan-drivers libvulkan1
fi
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc" # a test starts itself again
cd "$here"
cargo test --workspace --no-run --message-format=json > "$check"
python3 -c '
import json, sys
for line in sys.stdin:
    said = json.loads(line)
    if said.get("executable") and "limpid-gpu" in said["package_id"]: print(said["executable"])
' < "$check" | sort -u | while read -r test; do
  cp "$test" "$root/root/test"
  mkdir -p "$root$here" && cp -r crates "$root$here/" # fixtures are read where they were
  chroot "$root" env GPU_REQUIRED=1 /root/test --nocapture < /dev/null
done
