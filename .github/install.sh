#!/bin/sh
# Puts limpid @VERSION@ into ~/.local/bin, or into the folder that is given; checks what it fetched.
set -eu
repository=@REPOSITORY@
version=@VERSION@
to=${1:-$HOME/.local/bin}
case "$(uname -s)-$(uname -m)" in
  Linux-x86_64) target=x86_64-unknown-linux-musl ;;
  Linux-aarch64) target=aarch64-unknown-linux-musl ;;
  Darwin-x86_64) target=x86_64-apple-darwin ;;
  Darwin-arm64) target=aarch64-apple-darwin ;;
  *) echo "no binary for $(uname -s) on $(uname -m): build limpid with cargo" >&2; exit 1 ;;
esac
name=limpid-$version-$target
from=https://github.com/$repository/releases/download/v$version
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
curl -fsSLO "$from/$name.tar.gz"
curl -fsSLO "$from/SHA256SUMS"
if command -v sha256sum > /dev/null; then check="sha256sum -c -"; else check="shasum -a 256 -c -"; fi
grep " $name.tar.gz\$" SHA256SUMS | $check > /dev/null
tar xzf "$name.tar.gz"
mkdir -p "$to"
cp "$name/limpid" "$to/limpid"
echo "limpid $version is in $to"
