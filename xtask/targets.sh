#!/usr/bin/env bash
# targets.sh FOLDER TARGET...: a Rust compiler below FOLDER with the standard library for each TARGET, and what links
# for them and runs programs for ARM on this machine, from the packages of Debian 12 alone. The compiler is unpacked,
# not installed, so the machine's own Rust stays as it is. What is there already is kept. Needs rustup's cargo (CARGO)
# and apt-get; exits with 3 where packages cannot be had.
set -euo pipefail
folder=$1
shift
tools=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user lld-19 wasi-libc)
missing() { echo "$*"; exit 3; }
command -v apt-get >/dev/null || missing "no apt-get"
root=$([ "$(id -u)" = 0 ] || echo "sudo -n")
updated=
update() { [ -n "$updated" ] || $root apt-get update -qq || missing "apt-get update failed"; updated=yes; }
installed() { dpkg -s "$1" 2>/dev/null | grep -q '^Status: install ok installed'; }
for package in "${tools[@]}"; do
  installed "$package" && continue
  $root true 2>/dev/null || missing "not allowed to install ${tools[*]}"
  update
  $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${tools[@]}" >/dev/null ||
    missing "not installed: ${tools[*]}"
done
if [ ! -e "$folder/rustc" ]; then
  version() { apt-cache policy rustc-web 2>/dev/null | sed -n 's/ *Candidate: //p' | grep -v none; }
  [ -n "$(version || true)" ] || { $root true 2>/dev/null && update || true; }
  [ -n "$(version || true)" ] || missing "no package rustc-web"
  # the names of its libraries have versions in them
  names=$(apt-cache depends --recurse --no-{recommends,suggests,conflicts,breaks,replaces,enhances} rustc-web |
    grep -E '^(libstd-rust-web|libllvm)')
  rm -rf "$folder"
  mkdir -p "$folder/packages"
  (cd "$folder/packages" && apt-get download -qq rustc-web rust-web-src $names) || missing "rustc-web was not downloaded"
  for package in "$folder"/packages/*.deb; do dpkg -x "$package" "$folder/unpacked"; done
  rm -r "$folder/packages"
  for program in rustdoc rustc; do
    printf '#!/bin/sh\nexport LD_LIBRARY_PATH=%s\nexec %s "$@"\n' \
      "'$folder/unpacked/usr/lib/x86_64-linux-gnu'" "'$folder/unpacked/usr/bin/$program'" >"$folder/$program"
    chmod +x "$folder/$program"
  done
fi
mkdir -p "$folder/std/src"
printf '[package]\nname = "std-for-targets"\nedition = "2024"\n[workspace]\n' >"$folder/std/Cargo.toml"
: >"$folder/std/src/lib.rs"
for target in "$@"; do
  libraries=$folder/unpacked/usr/lib/rustlib/$target/lib
  # types alone where nothing is linked; small what a page carries: docs/decisions.md#what-makes-a-pages-module-small
  how=(build -Zbuild-std=std,panic_abort,test) flags= level=3
  case $target in
    *apple* | *windows*) how[0]=check ;;
    *wasip1) how=(build -Zbuild-std=std,panic_abort -Zbuild-std-features=optimize_for_size) level=z
      flags="-Cembed-bitcode=yes -Cpanic=immediate-abort -Zunstable-options" ;;
  esac
  complete=$libraries/complete-$(echo "${how[*]} $flags $level" | cksum | cut -d' ' -f1)
  [ -e "$complete" ] && continue
  echo "== the standard library for $target"
  (cd "$folder/std" && RUSTFLAGS=$flags CARGO_PROFILE_RELEASE_OPT_LEVEL=$level RUSTC="$folder/rustc" \
    RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR="$folder/std/target" "$CARGO" "${how[@]}" --quiet --release --target "$target")
  mkdir -p "$libraries"
  rm -f "$libraries"/lib*.r* "$libraries"/complete*
  find "$folder/std/target/$target/release/deps" \( -name 'lib*.rmeta' -o -name 'lib*.rlib' \) \
    ! -name 'libstd_for_targets*' -exec cp -t "$libraries" {} +
  if [ "$target" = wasm32-wasip1 ]; then
    # Debian's library is older than what Rust calls: no thread ever starts there
    mkdir -p "$libraries/self-contained"
    cp /usr/lib/wasm32-wasi/libc.a "$libraries/self-contained"
    # shellcheck disable=SC2086 # flags are several words
    RUSTC_BOOTSTRAP=1 "$folder/rustc" --edition 2024 --target "$target" -O $flags --emit=obj xtask/targets/wasi.rs \
      -o "$folder/wasi.o"
    cat >"$folder/wasm-ld" <<END
#!/bin/sh
exec wasm-ld-19 "\$@" /usr/lib/wasm32-wasi/crt1-reactor.o '$folder/wasi.o' --export=_initialize
END
    chmod +x "$folder/wasm-ld"
  fi
  touch "$complete"
done
rm -rf "$folder/std"
