#!/bin/sh
# Puts limpid @VERSION@ into ~/.local/bin, or into the folder that is given: sh install.sh [FOLDER]. What is fetched is
# checked first, so a limpid that is there already stays as it is until the new one has taken its place.
# LIMPID_FROM=URL: where the files are, if not in the release (a mirror, or file:///a/folder).
set -eu
repository=@REPOSITORY@
version=@VERSION@
to=${1:-$HOME/.local/bin}
from=${LIMPID_FROM:-https://github.com/$repository/releases/download/v$version}
fail() {
  echo "limpid is not installed: $1" >&2
  exit 1
}

case "$(uname -s)-$(uname -m)" in
  Linux-x86_64) target=x86_64-unknown-linux-musl ;;
  Linux-aarch64) target=aarch64-unknown-linux-musl ;;
  Darwin-x86_64) target=x86_64-apple-darwin ;;
  Darwin-arm64) target=aarch64-apple-darwin ;;
  *) fail "there is no binary for $(uname -s) on $(uname -m); build it with cargo" ;;
esac
if command -v sha256sum > /dev/null; then sums=sha256sum; else sums="shasum -a 256"; fi
if ! mkdir -p "$to" 2> /dev/null || ! [ -w "$to" ]; then fail "$to cannot be written; name another folder"; fi
if [ -d "$to/limpid" ]; then fail "$to/limpid is a folder; name another folder"; fi

name=limpid-$version-$target
work=$(mktemp -d)
trap 'rm -rf "$work" "$to/.limpid.$$"' EXIT
trap 'exit 1' HUP INT TERM
for file in "$name.tar.gz" SHA256SUMS; do
  curl -fsSL -o "$work/$file" "$from/$file" || fail "$from/$file cannot be fetched"
done
expected=$(awk -v file="$name.tar.gz" '$2 == file { print $1 }' "$work/SHA256SUMS")
found=$($sums < "$work/$name.tar.gz" | cut -d ' ' -f 1)
[ -n "$expected" ] || fail "SHA256SUMS has no line for $name.tar.gz"
[ "$expected" = "$found" ] || fail "$name.tar.gz is damaged: its SHA-256 is $found, not $expected; fetch it again"
tar xzf "$work/$name.tar.gz" -C "$work"
# beside its place, then into it: nobody ever starts half a program
cp "$work/$name/limpid" "$to/.limpid.$$"
mv -f "$to/.limpid.$$" "$to/limpid"
echo "limpid $version is in $to"
case ":$PATH:" in *":$to:"*) ;; *) echo "add $to to your PATH to call it by its name" ;; esac
