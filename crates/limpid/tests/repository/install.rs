//! `.github/install.sh`, run on a folder that looks like a release: it puts a checked binary in its place, or says why
//! not and leaves what was there.

#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A release in `release`, a folder `to` with an older limpid, and the machine that `uname` names.
struct Place {
    folder: PathBuf,
}

const ARCHIVE: &str = "limpid-7.8.9-x86_64-unknown-linux-musl.tar.gz";

/// Makes the release: an archive with a "binary" that says its version, and the checksums of this archive and others.
const RELEASE: &str = r#"
set -eu
mkdir -p release to work/NAME
printf '#!/bin/sh\necho limpid 7.8.9\n' > work/NAME/limpid
chmod +x work/NAME/limpid
tar czf release/NAME.tar.gz -C work NAME
cd release
if command -v sha256sum > /dev/null; then sums=sha256sum; else sums="shasum -a 256"; fi
echo "0000  other-NAME.tar.gz" > SHA256SUMS
$sums NAME.tar.gz >> SHA256SUMS
"#;

impl Place {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("limpid-install-{}-{name}", std::process::id()));
        fs::create_dir_all(folder.join("bin")).unwrap();
        let place = Self { folder };
        let script = RELEASE.replace("NAME", ARCHIVE.trim_end_matches(".tar.gz"));
        assert!(place.sh().args(["-c", &script]).status().unwrap().success());
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.github/install.sh")).unwrap();
        assert!(text.contains("@VERSION@") && text.contains("@REPOSITORY@"), "a release fills these in");
        fs::write(place.at("install.sh"), text.replace("@VERSION@", "7.8.9")).unwrap();
        fs::write(place.at("to/limpid"), "older").unwrap();
        place.machine("Linux", "x86_64");
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn sh(&self) -> Command {
        let mut sh = Command::new("sh");
        sh.current_dir(&self.folder);
        sh
    }

    /// `uname` names another system and processor.
    fn machine(&self, system: &str, processor: &str) {
        let uname = self.at("bin/uname");
        fs::write(&uname, format!("#!/bin/sh\n[ \"$1\" = -s ] && echo {system} || echo {processor}\n")).unwrap();
        fs::set_permissions(uname, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs the script with this folder to install into: what it said, or what went wrong.
    fn install(&self, to: &Path) -> Result<String, String> {
        let path = format!("{}:{}", self.at("bin").display(), std::env::var("PATH").unwrap());
        let mut sh = self.sh();
        sh.arg("install.sh").arg(to).env("PATH", path).env("TMPDIR", &self.folder);
        let ran = sh.env("LIMPID_FROM", format!("file://{}", self.at("release").display())).output().unwrap();
        let [said, wrong] = [ran.stdout, ran.stderr].map(|text| String::from_utf8(text).unwrap());
        if ran.status.success() { Ok(said) } else { Err(wrong) }
    }

    /// It fails with these words, the older limpid is as it was, and nothing else was left in its folder.
    fn refused(self, words: &str) {
        let wrong = self.install(&self.at("to")).expect_err(words);
        assert!(wrong.contains(words), "{wrong}");
        assert_eq!(fs::read_to_string(self.at("to/limpid")).unwrap(), "older");
        self.clean();
    }

    /// Nothing but the binary is in its folder, and no folder of the script's own is left.
    fn clean(self) {
        assert_eq!(fs::read_dir(self.at("to")).unwrap().count(), 1);
        let left = fs::read_dir(&self.folder).unwrap().filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            !["bin", "install.sh", "release", "to", "work", "file"].iter().any(|own| name == **own)
        });
        assert_eq!(left.count(), 0);
        fs::remove_dir_all(self.folder).unwrap();
    }
}

#[test]
fn an_older_limpid_is_replaced_by_a_checked_one() {
    let place = Place::new("good");
    let said = place.install(&place.at("to")).unwrap();
    assert!(said.contains("limpid 7.8.9 is in ") && said.contains("to your PATH"), "{said}");
    let ran = Command::new(place.at("to/limpid")).output().unwrap();
    assert_eq!(ran.stdout, b"limpid 7.8.9\n");
    place.clean();
}

#[test]
fn a_damaged_archive_is_refused() {
    let place = Place::new("damaged");
    let archive = place.at("release").join(ARCHIVE);
    let mut bytes = fs::read(&archive).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(archive, bytes).unwrap();
    place.refused("is damaged: its SHA-256 is");
}

#[test]
fn an_archive_without_a_checksum_is_refused() {
    let place = Place::new("unlisted");
    // a name that contains the archive's is not the archive's
    fs::write(place.at("release/SHA256SUMS"), format!("0000  other-{ARCHIVE}\n0000  {ARCHIVE}.old\n")).unwrap();
    place.refused(&format!("SHA256SUMS has no line for {ARCHIVE}"));
    let place = Place::new("without-sums");
    fs::remove_file(place.at("release/SHA256SUMS")).unwrap();
    place.refused("SHA256SUMS cannot be fetched");
}

#[test]
fn a_machine_without_a_binary_is_named() {
    let place = Place::new("machine");
    place.machine("FreeBSD", "riscv64");
    place.refused("there is no binary for FreeBSD on riscv64; build it with cargo");
    let place = Place::new("absent");
    place.machine("Darwin", "arm64");
    place.refused("limpid-7.8.9-aarch64-apple-darwin.tar.gz cannot be fetched");
}

#[test]
fn what_cannot_be_written_is_said_before_anything_is_fetched() {
    let place = Place::new("folder");
    fs::write(place.at("file"), "").unwrap();
    fs::remove_dir_all(place.at("release")).unwrap();
    // the system's own folder of processes: root cannot write there either
    for to in [place.at("file"), place.at("file/below"), "/proc/limpid".into()] {
        let wrong = place.install(&to).expect_err("not a folder");
        assert!(wrong.contains(&format!("{} cannot be written; name another folder", to.display())), "{wrong}");
    }
    fs::remove_file(place.at("to/limpid")).unwrap();
    fs::create_dir(place.at("to/limpid")).unwrap();
    let wrong = place.install(&place.at("to")).expect_err("a folder is there");
    assert!(wrong.contains("to/limpid is a folder"), "{wrong}");
    place.clean();
}

#[test]
fn a_folder_without_write_permission_is_refused() {
    let place = Place::new("permission");
    fs::set_permissions(place.at("to"), fs::Permissions::from_mode(0o555)).unwrap();
    // root may write wherever it likes
    if fs::write(place.at("to/any"), "").is_ok() {
        println!("skipped: this user may write everywhere");
        fs::remove_file(place.at("to/any")).unwrap();
    } else {
        let wrong = place.install(&place.at("to")).expect_err("no permission");
        assert!(wrong.contains("cannot be written; name another folder"), "{wrong}");
    }
    fs::set_permissions(place.at("to"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(fs::read_to_string(place.at("to/limpid")).unwrap(), "older");
    place.clean();
}
