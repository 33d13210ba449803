//! Files: mapped into memory ([`Map`]), read whole up to a limit ([`read_small`]), written ([`OutputFile`]), and
//! replaced whole or not at all ([`replace`], [`replace_folder`]). Everything that a run reads and writes goes through
//! this module, so that a test can make any one of these operations fail, be the last, or find that somebody removed a
//! file.

mod map;

pub use map::Map;

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// How the name of a file ends that is not written to its end yet: FILE, a dot, some letters, and this. A process that
/// is killed leaves it.
pub const PARTIAL: &str = ".partial";

/// Reads all of a file that should be small, like a configuration or a vocabulary. Only a regular file of at most
/// `limit` bytes is read: a named pipe would wait for ever, and a device may have no end.
///
/// # Errors
/// The file system's error; or what the file is, if it is not regular or too large.
pub fn read_small(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    may()?;
    let file = open_regular(path)?;
    let (length, mut bytes) = (file.metadata()?.len(), vec![]);
    // the size may be wrong or change: some system files report 0
    if length <= limit {
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    }
    match length.max(bytes.len() as u64) {
        found if found > limit => {
            let why = format!("it has {found} bytes or more, at most {limit} are read: is it the right file?");
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        }
        _ => Ok(bytes),
    }
}

/// Opens a regular file for reading: a named pipe would wait for ever, and a device may have no end.
///
/// # Errors
/// The file system's error; or what it is, if it is not regular or a pointer of Git LFS.
pub fn open_regular(path: &Path) -> io::Result<File> {
    regular(&fs::metadata(path)?)?; // before it is opened: opening a pipe waits for a writer
    let mut file = File::open(path)?;
    let about = file.metadata()?;
    regular(&about)?;
    if about.len() <= LONGEST_POINTER {
        let (mut first, mut read) = ([0; POINTER.len()], 0);
        while read < first.len() {
            match file.read(&mut first[read..])? {
                0 => break,
                n => read += n,
            }
        }
        file.rewind()?;
        if first == *POINTER {
            let why = "it is a Git LFS pointer, which stands for a file that was not downloaded: run `git lfs pull` \
                       in its repository";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
    }
    Ok(file)
}

/// What Git LFS puts in the place of a file that it keeps elsewhere begins so, and is no longer than this.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v";
const LONGEST_POINTER: u64 = 1024;

fn regular(about: &fs::Metadata) -> io::Result<()> {
    if about.is_file() {
        return Ok(());
    }
    let found = if about.is_dir() { "a folder" } else { "a pipe or a device" };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {found}, not a regular file")))
}

/// [`read_small`] of a text in UTF-8.
///
/// # Errors
/// As [`read_small`], and if the bytes are not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    String::from_utf8(read_small(path, limit)?).map_err(|e| {
        let (at, byte) = (e.utf8_error().valid_up_to(), e.as_bytes()[e.utf8_error().valid_up_to()]);
        io::Error::new(io::ErrorKind::InvalidData, format!("it is not UTF-8 text: byte {at} is 0x{byte:02X}"))
    })
}

/// A file that is being written.
pub struct OutputFile(File);

impl OutputFile {
    /// Creates the file, or empties an existing one.
    ///
    /// # Errors
    /// The file system's error, as for all methods below.
    pub fn create(path: &Path) -> io::Result<OutputFile> {
        may()?;
        File::create(path).map(OutputFile)
    }

    /// Opens a file to read and write, and creates it if there is none.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn open(path: &Path) -> io::Result<OutputFile> {
        may()?;
        fs::metadata(path).map_or(Ok(()), |about| regular(&about))?;
        File::options().read(true).write(true).create(true).truncate(false).open(path).map(OutputFile)
    }

    /// Locks the file for this process, until it is dropped or the process ends.
    ///
    /// # Errors
    /// If another process has locked it, or the file system has no locks.
    pub fn try_lock(&self) -> Result<(), TryLockError> {
        self.0.try_lock()
    }

    /// Whether the file is the one at `path`, and not one that was removed or moved away since it was opened. (Where
    /// the system does not tell files apart: whether there is one.)
    pub fn is_at(&self, path: &Path) -> bool {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let (own, there) = (self.0.metadata(), fs::metadata(path));
            own.ok().zip(there.ok()).is_some_and(|(own, there)| (own.dev(), own.ino()) == (there.dev(), there.ino()))
        }
        #[cfg(not(unix))]
        path.exists()
    }

    /// Truncates the file to `end` bytes and continues writing there.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn rewind(&mut self, end: u64) -> io::Result<()> {
        may()?;
        self.0.set_len(end)?;
        self.0.seek(SeekFrom::Start(end)).map(drop)
    }

    /// Asks the system to write everything to the disk.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn sync(&mut self) -> io::Result<()> {
        may()?;
        sync(&self.0)
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(error) = may() {
            // as on a disk that becomes full: a part is written
            let _ = self.0.write(&bytes[..bytes.len() / 2]);
            return Err(error);
        }
        self.0.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Read for OutputFile {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

impl Seek for OutputFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

/// Replaces `path` by what `write` produces: whole, or not at all.
///
/// # Errors
/// The file system's error; the old file is then unchanged, and nothing is left beside it. There is one exception:
/// if the error is that the folder cannot be synced at the end, the file is already the new one.
pub fn replace(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|about| !about.is_file()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is a folder, a pipe or a device: it is left as it is",
        ));
    }
    may()?;
    // created here, so that it has the permissions that files get
    let beside = beside(path, |new| File::options().write(true).create_new(true).open(new).map(drop))?;
    let done = write(&beside)
        .and_then(|()| {
            may()?;
            sync(&File::open(&beside)?)
        })
        .and_then(|()| {
            may()?;
            fs::rename(&beside, path)
        });
    if done.is_err() {
        let _ = fs::remove_file(&beside);
    }
    done.and_then(|()| sync_folder_of(path))
}

/// Makes what will take the place of `path` in the same folder, under a name of its own: two writers of one file write
/// into two.
fn beside(path: &Path, make: impl FnMut(&Path) -> io::Result<()>) -> io::Result<PathBuf> {
    let mut prefix = path.file_name().unwrap_or_default().to_os_string();
    prefix.push(".");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(PARTIAL).disable_cleanup(true);
    Ok(builder.make_in(folder_of(path), make)?.path().to_path_buf())
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates a folder and its missing parents.
///
/// # Errors
/// Whatever the file system says.
pub fn create_folder(path: &Path) -> io::Result<()> {
    may()?;
    fs::create_dir_all(path)
}

/// Removes a file, or a folder with its contents. It is no error if there is none.
///
/// # Errors
/// Whatever the file system says.
pub fn remove(path: &Path) -> io::Result<()> {
    may()?;
    let removed = match path.symlink_metadata() {
        Ok(about) if about.is_dir() => fs::remove_dir_all(path),
        _ => fs::remove_file(path),
    };
    removed.or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })
}

/// Gives a second name to a file that will never be written, in the place of another file: whole, or not at all. Where
/// the file system has no links, it copies the file.
///
/// # Errors
/// Whatever the file system says; what was at `to` is then unchanged, as with [`replace`].
pub fn link(from: &Path, to: &Path) -> io::Result<()> {
    may()?;
    let beside = match beside(to, |new| fs::hard_link(from, new)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(e),
        Err(_) => return replace(to, |beside| fs::copy(from, beside).map(drop)),
        Ok(beside) => beside,
    };
    let done = may().and_then(|()| fs::rename(&beside, to));
    // if it was not renamed; or if both were names of one file already, which are then left as they are
    let _ = fs::remove_file(&beside);
    done.and_then(|()| sync_folder_of(to))
}

/// Syncs the folder of a file: without it, a renamed file may have its old name again after a power failure. (Not
/// every system can open folders; those that cannot keep names by themselves.)
fn sync_folder_of(path: &Path) -> io::Result<()> {
    may()?;
    match File::open(folder_of(path)) {
        Ok(folder) if cfg!(unix) => match sync(&folder) {
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(()), // a file system that cannot sync folders
            done => done,
        },
        _ => Ok(()),
    }
}

/// Called before each operation, so that tests can make any of them fail.
fn may() -> io::Result<()> {
    #[cfg(feature = "faults")]
    faults::next()?;
    Ok(())
}

/// Syncs a file to the disk.
fn sync(file: &File) -> io::Result<()> {
    #[cfg(feature = "faults")]
    if faults::are_counted() {
        return Ok(());
    }
    file.sync_all()
}

/// What happens at each operation of this thread: it fails, or something else happens before it.
#[cfg(feature = "faults")]
pub mod faults {
    use std::cell::{Cell, RefCell};
    use std::io;
    use std::ops::Range;

    /// Hears the number of each operation before it is done.
    type Hook = Box<dyn FnMut(u64) -> io::Result<()>>;

    thread_local! {
        static DONE: Cell<u64> = const { Cell::new(0) };
        static COUNTED: Cell<bool> = const { Cell::new(false) };
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    /// Runs `f` while the operations with these numbers fail. Returns also how many operations there were.
    pub fn during<T>(failing: Range<u64>, f: impl FnOnce() -> T) -> (T, u64) {
        let fail = move |n| {
            if failing.contains(&n) {
                return Err(io::Error::new(io::ErrorKind::StorageFull, format!("operation {n} fails")));
            }
            Ok(())
        };
        before_each(fail, f)
    }

    /// Runs `f`, and `hook` before each of its operations: one that gives an error fails. What the hook itself does is
    /// not counted; it may remove files as somebody else would, or end all by a panic as a kill does. Returns also how
    /// many operations there were.
    pub fn before_each<T>(hook: impl FnMut(u64) -> io::Result<()> + 'static, f: impl FnOnce() -> T) -> (T, u64) {
        COUNTED.set(true);
        DONE.set(0);
        HOOK.set(Some(Box::new(hook)));
        let done = f();
        HOOK.set(None);
        (done, DONE.get())
    }

    /// No operation fails and none waits for the disk, for the rest of the thread: for tests with thousands of runs.
    pub fn none() {
        HOOK.set(None);
        COUNTED.set(true);
    }

    /// Whether this thread tests faults.
    pub fn are_counted() -> bool {
        COUNTED.get()
    }

    /// Counts an operation.
    ///
    /// # Errors
    /// If it is to fail.
    pub fn next() -> io::Result<()> {
        // what the hook does meets none; if it panics, there is none any more
        let Some(mut hook) = HOOK.take() else { return Ok(()) };
        let heard = hook(DONE.replace(DONE.get() + 1));
        HOOK.set(Some(hook));
        heard
    }
}

/// Replaces the folder `path` by one that `write` fills: whole, or not at all, and nothing of the old one remains.
/// Where the two cannot be exchanged in one step (systems other than Linux, some network drives), a crash between
/// two renames leaves the old one beside `path`.
///
/// # Errors
/// The error of `write` or of the file system; the old folder is then unchanged, and nothing is left beside it.
pub fn replace_folder(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    may()?;
    let new = beside(path, |new| fs::create_dir(new))?;
    let old = new.with_extension("old");
    let in_two_steps = || {
        fs::rename(path, &old)?;
        fs::rename(&new, path).inspect_err(|_| drop(fs::rename(&old, path)))?;
        fs::rename(&old, &new)
    };
    let done = write(&new).and_then(|()| may()).and_then(|()| {
        // it may have been filled while this one was written
        let full = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
        if full { exchange(&new, path).or_else(|_| in_two_steps()) } else { fs::rename(&new, path) }
    });
    // `new` is now the old folder, or an unfinished one
    let _ = fs::remove_dir_all(&new);
    done
}

#[cfg(target_os = "linux")]
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)?)
}

#[cfg(not(target_os = "linux"))]
fn exchange(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_within_the_limit_are_read() {
        let folder = std::env::temp_dir().join(format!("limpid-small-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("file");
        for (bytes, limit, fits) in [(0, 0, true), (1, 0, false), (5, 5, true), (6, 5, false), (6, u64::MAX, true)] {
            fs::write(&path, vec![b'x'; bytes]).unwrap();
            let read = read_small(&path, limit);
            assert_eq!(read.as_ref().ok().map(Vec::len), fits.then_some(bytes), "{bytes} {limit}: {read:?}");
        }
        // Git LFS's pointer, of either version; a text that speaks of one, and a longer file that begins so, are what
        // they are
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
        for (text, is_pointer) in [
            (pointer.to_string(), true),
            (pointer.replace("v1", "v2"), true),
            (format!("See {pointer}"), false),
            (pointer.repeat(20), false),
            (pointer[..39].into(), false),
        ] {
            fs::write(&path, &text).unwrap();
            match read_small(&path, 1 << 20) {
                Ok(bytes) => assert!(!is_pointer && bytes == text.as_bytes(), "{text}"),
                Err(error) => assert!(is_pointer && error.to_string().contains("git lfs pull"), "{text}: {error}"),
            }
        }
        fs::write(&path, b"ab\xFFc").unwrap();
        assert_eq!(read_text(&path, 9).unwrap_err().to_string(), "it is not UTF-8 text: byte 2 is 0xFF");
        // a sparse file of 1 TiB is refused by its size, before it is read
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(read_small(&path, 1 << 30).unwrap_err().to_string().contains("1099511627776 bytes"));
        assert!(read_small(&folder, 9).unwrap_err().to_string().contains("a folder"));
        assert_eq!(read_small(&folder.join("none"), 9).unwrap_err().kind(), io::ErrorKind::NotFound);
        if cfg!(unix) {
            assert!(read_small(Path::new("/dev/zero"), 9).unwrap_err().to_string().contains("a device"));
            let pipe = folder.join("pipe");
            assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            assert!(read_small(&pipe, 9).unwrap_err().to_string().contains("a pipe"));
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    /// The second begins and ends while the first is writing.
    #[test]
    fn two_writers_of_one_place_do_not_meet() {
        let root = std::env::temp_dir().join(format!("limpid-writers-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let [file, folder, from] = ["file", "folder", "from"].map(|name| root.join(name));
        fs::write(&from, "linked").unwrap();
        let put = |path: &Path, text: &str| File::options().append(true).open(path)?.write_all(text.as_bytes());
        type Second<'a> = &'a dyn Fn() -> io::Result<()>;
        let seconds: [Second; 2] = [&|| replace(&file, |new| put(new, "second")), &|| link(&from, &file)];
        for (second, theirs) in seconds.into_iter().zip(["second", "linked"]) {
            replace(&file, |new| {
                put(new, "fir")?;
                second()?;
                assert_eq!(fs::read_to_string(&file)?, theirs);
                put(new, "st")
            })
            .unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), "first");
        }
        replace_folder(&folder, |new| {
            fs::write(new.join("a"), "first")?;
            replace_folder(&folder, |new| fs::write(new.join("b"), "second"))
        })
        .unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>(), ["a"]);
        assert_eq!(fs::read_to_string(&from).unwrap(), "linked");
        assert_eq!(fs::read_dir(&root).unwrap().count(), 3, "nothing is left beside them");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_folder_is_replaced_whole_or_not_at_all() {
        let root = std::env::temp_dir().join(format!("limpid-folder-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let path = root.join("it");
        let names = |folder: &Path| {
            let mut all: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name()).collect();
            all.sort();
            all
        };
        let put = |name: &'static str| move |folder: &Path| fs::write(folder.join(name), name);
        for round in 0..2 {
            replace_folder(&path, put("a")).unwrap(); // where there is none, and where there is an empty one
            assert_eq!(names(&path), ["a"]);
            replace_folder(&path, put("b")).unwrap();
            assert_eq!(
                (names(&path), names(&root)),
                (vec!["b".into()], vec!["it".into()]),
                "nothing of the old one stays"
            );
            let failed = replace_folder(&path, |folder| put("c")(folder).and(Err(io::ErrorKind::StorageFull.into())));
            assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
            assert_eq!((names(&path), names(&root)), (vec!["b".into()], vec!["it".into()]), "the old one is whole");
            fs::remove_dir_all(&path).unwrap();
            if round == 0 {
                fs::create_dir(&path).unwrap();
            }
        }
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, |_| Ok(())).unwrap_err().to_string().contains("a folder"));
        if cfg!(unix) {
            assert!(
                replace(Path::new("/dev/null"), |_| panic!("written")).unwrap_err().to_string().contains("a device")
            );
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
