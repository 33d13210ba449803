//! The format of a time-lapse, in little-endian numbers:
//!
//! | bytes | what |
//! |---|---|
//! | 4, u32, u32, u64 | `LPTL`, the version (1), the length of the header, its checksum |
//! | header | JSON: checksums of the configuration and the tokenizer, the ids of the probe, and a table of channels |
//! | 4, u32, u64, u64, u64 | of each frame: `FRAM`, the length of the rest, the step, tokens trained on, a checksum |
//! | frame | deflated: the values of each channel, one after the other as in the table |
//!
//! Checksums are XXH3 (64 bits); that of a frame covers its length, step and tokens too. Frames are only added, in the
//! order of their steps. A last frame that is cut short, does not fit its checksum, or is zeros to the end of the file
//! was being written, and is ignored. If another frame begins in it, or anything follows the zeros, the file is
//! damaged. There is no clock in the file, so a run that was killed and resumed leaves the same bytes; the seconds of a
//! step are in metrics.jsonl.

use crate::files::{self, OutputFile};
use crate::train::Run;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const MAGIC: [u8; 4] = *b"LPTL";
const VERSION: u32 = 1;
const FRAME: [u8; 4] = *b"FRAM";
/// Bytes before the header, and before each frame.
const START: u64 = 20;
const HEAD: usize = 32;

/// The most bytes of a header.
const LONGEST_HEADER: u64 = 16 << 20;
/// The most bytes of a frame, inflated.
const LARGEST_FRAME: usize = 256 << 20;
/// The most frames of a file.
const MOST_FRAMES: usize = 1 << 20;

/// A u32 where there is no value: no rank, no token.
pub const NONE: u32 = u32::MAX;

/// Why a time-lapse cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimelapseError {
    /// The file system.
    #[error("{}: {fault}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it says.
        fault: io::Error,
    },
    /// A folder without one.
    #[error("{} has no {}: the run was not trained with --probe", .folder.display(), super::FILE)]
    Missing {
        /// The folder.
        folder: PathBuf,
    },
    /// A file that is none, or is damaged.
    #[error("{}: {what}", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What was expected and found.
        what: String,
    },
    /// A run that goes on with another probe than it began with.
    #[error(
        "{} was begun with another {what}: resume with the same one or without the time-lapse (probe false), or remove \
         the file", .path.display()
    )]
    OtherProbe {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
    },
    /// A training that cannot be probed.
    #[error("a time-lapse cannot be recorded of this training: {0}")]
    NotThis(&'static str),
}

/// What a header has of a text to tell it from others.
pub(super) fn checksum(text: &str) -> String {
    format!("{:016x}", xxh3_64(text.as_bytes()))
}

type Result<T, E = TimelapseError> = std::result::Result<T, E>;

/// What the frames of a file hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimelapseHeader {
    /// The checksum of the model's configuration.
    pub config: String,
    /// The checksum of its tokenizer.
    pub tokenizer: String,
    /// The tokens that the model looks at.
    pub probe: Vec<u32>,
    /// Random tokens, twice, on which induction shows.
    pub repeated: Vec<u32>,
    /// How many tokens of the probe the sample continues.
    pub prompt: usize,
    /// The values of each frame, in order.
    pub channels: Vec<Channel>,
}

/// A tensor that every frame has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// Its name.
    pub name: String,
    /// What each axis counts.
    pub axes: Vec<String>,
    /// How many along each.
    pub shape: Vec<usize>,
    /// The type of its elements: f32, u32 or u8.
    pub dtype: String,
    /// What a value is.
    pub unit: String,
}

/// The values of a channel in a frame, in the order of its axes, the last one fastest.
#[derive(Clone, Debug, PartialEq)]
pub enum ChannelValues {
    /// Numbers; NaN where there is none.
    F32(Vec<f32>),
    /// Counts and tokens; [`NONE`] where there is none.
    U32(Vec<u32>),
    /// Squares of pictures.
    U8(Vec<u8>),
}

/// What was seen after one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// The step.
    pub step: u64,
    /// Tokens trained on until then.
    pub tokens: u64,
    /// The values of each channel of the header.
    pub values: Vec<ChannelValues>,
}

/// Where a frame lies.
#[derive(Clone, Copy, Debug)]
struct FramePlace {
    at: u64,
    length: u32,
    step: u64,
    tokens: u64,
    sum: u64,
}

/// A file of frames, open to read: those that were whole when it was opened.
#[derive(Debug)]
pub struct Timelapse {
    path: PathBuf,
    file: File,
    header: TimelapseHeader,
    frames: Vec<FramePlace>,
    /// Where the last whole frame ends.
    end: u64,
    /// How many bytes follow.
    unfinished: u64,
}

impl FramePlace {
    /// The place of a frame with this head, which begins at byte `start`.
    fn of(head: &[u8], start: u64) -> FramePlace {
        FramePlace {
            at: start + HEAD as u64,
            length: u32::from_le_bytes(number(head, 4)),
            step: u64::from_le_bytes(number(head, 8)),
            tokens: u64::from_le_bytes(number(head, 16)),
            sum: u64::from_le_bytes(number(head, 24)),
        }
    }
}

impl Channel {
    /// A channel of `axes` with their sizes.
    pub(super) fn new(name: &str, axes: &[(&str, usize)], dtype: &str, unit: &str) -> Channel {
        let (axes, shape) = axes.iter().map(|(axis, size)| (axis.to_string(), *size)).unzip();
        Channel { name: name.into(), axes, shape, dtype: dtype.into(), unit: unit.into() }
    }

    /// Values of a frame; none if they are more than any memory has.
    fn elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size))
    }

    fn bytes(&self) -> Option<usize> {
        let each = match &*self.dtype {
            "f32" | "u32" => 4,
            "u8" => 1,
            _ => return None,
        };
        self.elements()?.checked_mul(each)
    }
}

impl ChannelValues {
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            ChannelValues::F32(values) => to.extend(values.iter().flat_map(|v| v.to_le_bytes())),
            ChannelValues::U32(values) => to.extend(values.iter().flat_map(|v| v.to_le_bytes())),
            ChannelValues::U8(values) => to.extend_from_slice(values),
        }
    }

    fn read(dtype: &str, bytes: &[u8]) -> ChannelValues {
        let four = || bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
        match dtype {
            "f32" => ChannelValues::F32(four().map(f32::from_le_bytes).collect()),
            "u32" => ChannelValues::U32(four().map(u32::from_le_bytes).collect()),
            _ => ChannelValues::U8(bytes.to_vec()),
        }
    }
}

impl TimelapseHeader {
    /// Bytes of a frame, inflated, if all channels are such as this version reads.
    fn frame_bytes(&self) -> Result<usize, String> {
        let mut all = 0usize;
        for channel in &self.channels {
            // a 0 would let other axes be any number
            let bytes = channel.bytes().filter(|_| !channel.shape.contains(&0));
            let bytes = bytes.and_then(|bytes| all.checked_add(bytes)).filter(|all| *all <= LARGEST_FRAME);
            all = bytes.ok_or_else(|| {
                format!(
                    "the channel `{}` of {} {:?} is none that is read: the types are f32, u32 and u8, and a frame has \
                     at most {LARGEST_FRAME} bytes",
                    channel.name, channel.dtype, channel.shape
                )
            })?;
            if channel.axes.len() != channel.shape.len() {
                return Err(format!(
                    "the channel `{}` has {:?} and sizes {:?}",
                    channel.name, channel.axes, channel.shape
                ));
            }
        }
        Ok(all)
    }

    /// What differs from another probe.
    fn difference(&self, other: &TimelapseHeader) -> Option<&'static str> {
        [
            (self.config != other.config, "model"),
            (self.tokenizer != other.tokenizer, "tokenizer"),
            (self.probe != other.probe, "text (probe_text)"),
            (self != other, "table of channels"),
        ]
        .into_iter()
        .find_map(|(differs, what)| differs.then_some(what))
    }
}

fn at_path<T>(path: &Path, done: io::Result<T>) -> Result<T> {
    done.map_err(|fault| TimelapseError::Io { path: path.into(), fault })
}

/// The checksum of a frame.
fn frame_sum(length: u32, step: u64, tokens: u64, payload: &[u8]) -> u64 {
    let mut sum = Xxh3::new();
    sum.update(&length.to_le_bytes());
    sum.update(&step.to_le_bytes());
    sum.update(&tokens.to_le_bytes());
    sum.update(payload);
    sum.digest()
}

/// The number at some bytes.
fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

impl Timelapse {
    /// Opens the time-lapse in a run's folder.
    ///
    /// # Errors
    /// If there is none, or it is damaged before its end.
    pub fn open(folder: impl AsRef<Path>) -> Result<Timelapse> {
        let folder = folder.as_ref();
        let path = folder.join(super::FILE);
        match files::open_regular(&path) {
            Err(fault) if fault.kind() == io::ErrorKind::NotFound => {
                Err(TimelapseError::Missing { folder: folder.into() })
            }
            file => Timelapse::read(path.clone(), at_path(&path, file)?),
        }
    }

    fn read(path: PathBuf, mut file: File) -> Result<Timelapse> {
        let bad = |what: String| TimelapseError::Format { path: path.clone(), what };
        let length = at_path(&path, file.metadata())?.len();
        let mut start = [0; START as usize];
        if length < START || at_path(&path, file.read_exact(&mut start)).is_err() || start[..4] != MAGIC {
            return Err(bad("it is not a time-lapse: it does not begin with LPTL".into()));
        }
        let version = u32::from_le_bytes(number(&start, 4));
        if version != VERSION {
            return Err(bad(format!("it has version {version}, and this limpid reads {VERSION}")));
        }
        let header_length = u64::from(u32::from_le_bytes(number(&start, 8)));
        if header_length > LONGEST_HEADER || START + header_length > length {
            return Err(bad(format!("its header has {header_length} bytes, more than there are or than are read")));
        }
        let mut text = vec![0; header_length as usize];
        at_path(&path, file.read_exact(&mut text))?;
        if xxh3_64(&text) != u64::from_le_bytes(number(&start, 12)) {
            return Err(bad("its header does not fit its checksum: it was changed or damaged".into()));
        }
        let header: TimelapseHeader =
            serde_json::from_slice(&text).map_err(|error| bad(format!("its header cannot be read: {error}")))?;
        let raw = header.frame_bytes().map_err(bad)?;
        let mut timelapse =
            Timelapse { path: path.clone(), file, header, frames: vec![], end: START + header_length, unfinished: 0 };
        timelapse.index(length, raw)?;
        Ok(timelapse)
    }

    /// Finds the frames. The last one is read: it may be half written.
    fn index(&mut self, length: u64, raw: usize) -> Result<()> {
        let damaged = |n: usize, path: &Path, what: &str| TimelapseError::Format {
            path: path.into(),
            what: format!("frame {n} (counted from 0) is damaged: {what}"),
        };
        // deflate adds a little to what it cannot make shorter
        let longest = (raw + raw / 64 + 1024) as u64;
        let mut last = None;
        while self.end + HEAD as u64 <= length {
            let (n, mut head) = (self.frames.len(), [0; HEAD]);
            let read = self.file.seek(SeekFrom::Start(self.end)).and_then(|_| self.file.read_exact(&mut head));
            at_path(&self.path, read)?;
            let place = FramePlace::of(&head, self.end);
            let end = place.at + u64::from(place.length);
            if head == [0; HEAD] {
                break; // room that the file system made for a frame, before its bytes came
            }
            if head[..4] != FRAME || u64::from(place.length) > longest {
                return Err(damaged(n, &self.path, "it does not begin as a frame does"));
            }
            if end > length {
                break;
            }
            if last.is_some_and(|last| last >= place.step) {
                return Err(damaged(n, &self.path, "its step is not after the one before"));
            }
            if n == MOST_FRAMES {
                return Err(damaged(n, &self.path, "there are more frames than are read"));
            }
            if end == length && self.payload(&place)?.is_none() {
                break;
            }
            last = Some(place.step);
            self.frames.push(place);
            self.end = end;
        }
        self.unfinished = length - self.end;
        let what = self.damage(longest);
        at_path(&self.path, what)?.map_or(Ok(()), |what| Err(damaged(self.frames.len(), &self.path, what)))
    }

    /// What is wrong with the bytes after the last whole frame, if an interrupted write did not leave them.
    fn damage(&mut self, longest: u64) -> io::Result<Option<&'static str>> {
        let mut tail = vec![];
        self.file.seek(SeekFrom::Start(self.end))?;
        Read::by_ref(&mut self.file).take(self.unfinished.min(HEAD as u64 + longest)).read_to_end(&mut tail)?;
        if tail.first() == Some(&0) {
            self.file.seek(SeekFrom::Start(self.end))?;
            let mut rest = io::BufReader::new(&self.file).take(self.unfinished).bytes();
            let all = rest.try_fold(true, |all, byte| byte.map(|byte| all && byte == 0))?;
            return Ok((!all).then_some("it begins with zeros, and something follows them"));
        }
        if !FRAME.starts_with(&tail[..tail.len().min(FRAME.len())]) {
            return Ok(Some("it does not begin as a frame does"));
        }
        let begins = |head: &[u8]| head[..4] == FRAME && u64::from(FramePlace::of(head, 0).length) <= longest;
        Ok(tail.windows(HEAD).skip(1).any(begins).then_some("it is not whole, and another frame follows it"))
    }

    /// The bytes at the end of the file that are no whole frame: one was being written when it was opened, or was cut
    /// short.
    pub fn unfinished(&self) -> u64 {
        self.unfinished
    }

    /// The deflated bytes of a frame, if they fit its checksum.
    fn payload(&mut self, place: &FramePlace) -> Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; place.length as usize];
        let read = self.file.seek(SeekFrom::Start(place.at)).and_then(|_| self.file.read_exact(&mut bytes));
        at_path(&self.path, read)?;
        Ok((frame_sum(place.length, place.step, place.tokens, &bytes) == place.sum).then_some(bytes))
    }

    /// What the frames hold.
    pub fn header(&self) -> &TimelapseHeader {
        &self.header
    }

    /// That it was recorded of a model with this tokenizer.json and so many layers and heads, if they are known: frames
    /// name tokens and heads by their numbers.
    ///
    /// # Errors
    /// If it was recorded of another.
    pub fn check_model(&self, tokenizer: Option<&str>, shape: Option<[usize; 2]>) -> Result<()> {
        let scores = self.header.channels.iter().find(|channel| channel.name == "scores");
        let differs = if tokenizer.is_some_and(|json| checksum(json) != self.header.tokenizer) {
            "tokenizer"
        } else if scores.is_some_and(|own| shape.is_some_and(|shape| own.shape.get(..2) != Some(&shape[..]))) {
            "number of layers or heads"
        } else {
            return Ok(());
        };
        let what = format!("it was recorded of a model with another {differs} than the one beside it");
        Err(TimelapseError::Format { path: self.path.clone(), what })
    }

    /// The steps of the frames, in order.
    pub fn steps(&self) -> Vec<u64> {
        self.frames.iter().map(|frame| frame.step).collect()
    }

    /// The steps of the whole run, of which the last frame may not have come yet; none if no run's state beside the
    /// file can be read.
    pub fn run_steps(&self) -> Option<u64> {
        Run::settings(self.path.parent()?, None).ok()?.map(|(recipe, _)| recipe.steps)
    }

    /// Reads a frame, counted from 0.
    ///
    /// # Errors
    /// If it is damaged.
    ///
    /// # Panics
    /// If there is no such frame ([`Timelapse::steps`]).
    pub fn frame(&mut self, n: usize) -> Result<Frame> {
        let place = self.frames[n];
        let bad = |path: &Path| TimelapseError::Format {
            path: path.into(),
            what: format!("frame {n} (counted from 0) does not fit its checksum: it was changed or damaged"),
        };
        let payload = self.payload(&place)?.ok_or_else(|| bad(&self.path))?;
        let raw = self.header.frame_bytes().unwrap_or(0);
        let bytes = miniz_oxide::inflate::decompress_to_vec_with_limit(&payload, raw).map_err(|_| bad(&self.path))?;
        if bytes.len() != raw {
            return Err(bad(&self.path));
        }
        let mut rest = &bytes[..];
        let values = self.header.channels.iter().map(|channel| {
            let (own, after) = rest.split_at(channel.bytes().unwrap_or(0));
            rest = after;
            ChannelValues::read(&channel.dtype, own)
        });
        Ok(Frame { step: place.step, tokens: place.tokens, values: values.collect() })
    }

    /// The values of a channel of numbers in one of its frames; none if there is no such channel.
    pub fn numbers<'a>(&self, frame: &'a Frame, name: &str) -> Option<&'a [f32]> {
        match self.values(frame, name)? {
            ChannelValues::F32(values) => Some(values),
            _ => None,
        }
    }

    /// The values of a channel of counts or tokens in one of its frames; none if there is no such channel.
    pub fn counts<'a>(&self, frame: &'a Frame, name: &str) -> Option<&'a [u32]> {
        match self.values(frame, name)? {
            ChannelValues::U32(values) => Some(values),
            _ => None,
        }
    }

    /// The values of a channel in one of its frames.
    pub fn values<'a>(&self, frame: &'a Frame, name: &str) -> Option<&'a ChannelValues> {
        let at = self.header.channels.iter().position(|channel| channel.name == name)?;
        frame.values.get(at)
    }
}

/// Drops the frames after `step` of a run that goes on without a time-lapse, if it has one that can be read.
pub(crate) fn cut(folder: &Path, step: u64) -> Result<()> {
    match Timelapse::open(folder) {
        Ok(found) => TimelapseWriter::new(folder, found.header).rewind(step),
        Err(_) => Ok(()),
    }
}

/// A file of frames, open to add some.
pub(super) struct TimelapseWriter {
    path: PathBuf,
    header: TimelapseHeader,
    file: Option<OutputFile>,
    /// Where the last whole frame ends.
    end: u64,
    /// Whether part of a frame may follow that place.
    torn: bool,
    /// The last step that has a frame.
    last: Option<u64>,
    /// The number of frames in the file.
    kept: u64,
    /// Frames that could not be written yet, as they will stand in the file, with their steps.
    waiting: Vec<(u64, Vec<u8>)>,
}

impl TimelapseWriter {
    /// The file that a run has in its folder, or will have there; nothing is written before
    /// [`TimelapseWriter::rewind`].
    pub fn new(folder: &Path, header: TimelapseHeader) -> TimelapseWriter {
        let path = folder.join(super::FILE);
        TimelapseWriter { path, header, file: None, end: 0, torn: true, last: None, kept: 0, waiting: vec![] }
    }

    /// Whether frames can be added to what is there.
    ///
    /// # Errors
    /// If it is another probe's, or damaged.
    pub fn check(&self) -> Result<()> {
        match Timelapse::open(self.folder()) {
            Ok(found) => match found.header.difference(&self.header) {
                Some(what) => Err(TimelapseError::OtherProbe { path: self.path.clone(), what }),
                None => Ok(()),
            },
            Err(TimelapseError::Missing { .. }) => Ok(()),
            Err(TimelapseError::Format { path, what }) => {
                Err(TimelapseError::Format { path, what: what + "; to resume without the earlier frames, remove it" })
            }
            Err(error) => Err(error),
        }
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// The last step that has a frame.
    pub fn last(&self) -> Option<u64> {
        self.last
    }

    /// The number of frames in the file.
    pub fn frame_count(&self) -> u64 {
        self.kept
    }

    /// Drops the frames after `step`; without a file, begins one.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn rewind(&mut self, step: u64) -> Result<()> {
        self.waiting.retain(|(own, _)| *own <= step);
        let (end, kept, last) = match Timelapse::open(self.folder()) {
            Ok(found) => {
                let kept = found.frames.partition_point(|frame| frame.step <= step);
                let end = found.frames.get(kept).map_or(found.end, |next| next.at - HEAD as u64);
                (end, kept as u64, kept.checked_sub(1).map(|n| found.frames[n].step))
            }
            Err(TimelapseError::Missing { .. }) => (self.begin()?, 0, None),
            Err(error) => return Err(error),
        };
        let mut file = at_path(&self.path, OutputFile::open(&self.path))?;
        at_path(&self.path, file.rewind(end))?;
        (self.file, self.end, self.kept, self.torn) = (Some(file), end, kept, false);
        self.last = self.waiting.last().map(|(step, _)| *step).or(last);
        Ok(())
    }

    /// Writes a file without frames; its length.
    fn begin(&self) -> Result<u64> {
        let text = serde_json::to_vec(&self.header).expect("a header is JSON");
        let (length, sum) = ((text.len() as u32).to_le_bytes(), xxh3_64(&text).to_le_bytes());
        let start = [&MAGIC[..], &VERSION.to_le_bytes(), &length, &sum, &text].concat();
        let write = |beside: &Path| OutputFile::create(beside)?.write_all(&start);
        at_path(&self.path, files::replace(&self.path, write))?;
        Ok(start.len() as u64)
    }

    /// Takes a frame, which waits to be written.
    pub fn add(&mut self, frame: &Frame) {
        let mut raw = vec![];
        frame.values.iter().for_each(|values| values.write(&mut raw));
        debug_assert_eq!(Ok(raw.len()), self.header.frame_bytes(), "a frame has the channels of its header");
        let payload = miniz_oxide::deflate::compress_to_vec(&raw, 6);
        let length = payload.len() as u32;
        let sum = frame_sum(length, frame.step, frame.tokens, &payload);
        let head = [&FRAME[..], &length.to_le_bytes(), &frame.step.to_le_bytes(), &frame.tokens.to_le_bytes()];
        let whole = [&head.concat(), &sum.to_le_bytes()[..], &payload].concat();
        self.last = Some(frame.step);
        self.waiting.push((frame.step, whole));
    }

    /// Writes the frames that wait. If `synced`, puts the file back if somebody removed it, and waits until all is on
    /// the disk.
    ///
    /// # Errors
    /// If they cannot be written; they then wait.
    pub fn write(&mut self, synced: bool) -> Result<()> {
        let path = self.path.clone();
        let Some(file) = &mut self.file else { return Ok(()) };
        if synced && !file.is_at(&path) {
            let mut whole = vec![];
            at_path(&path, file.seek(SeekFrom::Start(0)))?;
            at_path(&path, Read::by_ref(file).take(self.end).read_to_end(&mut whole))?;
            at_path(&path, files::replace(&path, |beside| OutputFile::create(beside)?.write_all(&whole)))?;
            (*file, self.torn) = (at_path(&path, OutputFile::open(&path))?, true);
        }
        if self.torn {
            at_path(&path, file.rewind(self.end))?;
            self.torn = false;
        }
        while let Some((_, bytes)) = self.waiting.first() {
            self.torn = true;
            at_path(&path, file.write_all(bytes))?;
            self.torn = false;
            (self.end, self.kept) = (self.end + bytes.len() as u64, self.kept + 1);
            self.waiting.remove(0);
        }
        if synced { at_path(&path, file.sync()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpid_base::files::faults;
    use std::fs;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("limpid-lpt-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn header() -> TimelapseHeader {
        let channels = vec![
            Channel::new("scores", &[("layer", 2), ("head", 3)], "f32", "share"),
            Channel::new("tokens", &[("pos", 5)], "u32", "token"),
            Channel::new("picture", &[("row", 7)], "u8", "weight"),
        ];
        let [config, tokenizer] = ["a", "b"].map(String::from);
        TimelapseHeader { config, tokenizer, probe: vec![1, 2], repeated: vec![3, 3], prompt: 1, channels }
    }

    fn frame(step: u64) -> Frame {
        let scores = (0..6).map(|i| (step + i) as f32 / 7.0).collect();
        let tokens = (0..5).map(|i| if i == 4 { NONE } else { (step + i) as u32 }).collect();
        let values = vec![
            ChannelValues::F32(scores),
            ChannelValues::U32(tokens),
            ChannelValues::U8((0..7).map(|i| (31 * step + i) as u8).collect()),
        ];
        Frame { step, tokens: 10 * step, values }
    }

    /// A file with frames of these steps.
    fn written(folder: &Path, steps: &[u64]) -> Vec<u8> {
        let mut writer = TimelapseWriter::new(folder, header());
        writer.rewind(0).unwrap();
        steps.iter().for_each(|step| writer.add(&frame(*step)));
        writer.write(true).unwrap();
        fs::read(folder.join(super::super::FILE)).unwrap()
    }

    /// Sizes of which one is 0 take no bytes, whatever the others say.
    #[test]
    fn a_header_without_sizes_is_refused() {
        let folder = folder("nothing");
        let shape: &[(&str, usize)] = &[("layer", 4_000_000_000), ("head", 2_000_000_000), ("score", 0)];
        let channels = vec![Channel::new("scores", shape, "f32", "share")];
        let mut writer = TimelapseWriter::new(&folder, TimelapseHeader { channels, ..header() });
        writer.rewind(0).unwrap();
        let error = writer.write(true).and_then(|_| Timelapse::open(&folder).map(drop)).unwrap_err().to_string();
        assert!(error.contains("the channel `scores`"), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }

    fn reread(folder: &Path, bytes: &[u8]) -> Result<Vec<Frame>> {
        fs::write(folder.join(super::super::FILE), bytes).unwrap();
        let mut timelapse = Timelapse::open(folder)?;
        (0..timelapse.frames.len()).map(|n| timelapse.frame(n)).collect()
    }

    #[test]
    fn frames_are_read_as_they_were_written_and_a_torn_one_is_ignored() {
        let folder = folder("torn");
        let whole = written(&folder, &[0, 1, 4]);
        let all = [frame(0), frame(1), frame(4)];
        assert_eq!(reread(&folder, &whole).unwrap(), all);
        let ends: Vec<usize> = {
            let timelapse = Timelapse::open(&folder).unwrap();
            timelapse.frames.iter().map(|frame| frame.at as usize - HEAD).chain([whole.len()]).collect()
        };
        for length in 0..whole.len() {
            let read = reread(&folder, &whole[..length]);
            match ends.iter().filter(|end| **end <= length).count().checked_sub(1) {
                Some(frames) => assert_eq!(read.unwrap(), all[..frames], "{length} bytes"),
                None => assert!(read.is_err(), "{length} bytes"),
            }
        }
        for length in [1, HEAD, 5000] {
            let zeros = [&whole[..], &vec![0; length]].concat();
            assert_eq!(reread(&folder, &zeros).unwrap(), all, "{length} zeros");
            // what follows is added where the last whole frame ends
            let mut writer = TimelapseWriter::new(&folder, header());
            writer.rewind(3).unwrap();
            assert_eq!(writer.last(), Some(1));
            writer.add(&frame(4));
            writer.write(false).unwrap();
            assert!(fs::read(folder.join(super::super::FILE)).unwrap() == whole);
        }
        fs::remove_dir_all(folder).unwrap();
    }

    /// Each operation on the file fails, and two after it: frames wait, and a later attempt writes them whole.
    #[test]
    fn frames_wait_while_the_disk_is_full() {
        let folder = folder("full");
        let (whole, path) = (written(&folder, &[0, 1, 4]), folder.join(super::super::FILE));
        let go = |failing: std::ops::Range<u64>| {
            fs::remove_file(&path).unwrap();
            let mut writer = TimelapseWriter::new(&folder, header());
            writer.rewind(0).unwrap();
            let (refused, operations) = faults::during(failing, || {
                let mut refused = 0;
                for step in [0, 1, 4] {
                    writer.add(&frame(step));
                    refused += usize::from(writer.write(step == 4).is_err());
                }
                refused
            });
            writer.write(true).unwrap();
            assert!(fs::read(&path).unwrap() == whole);
            (refused, operations)
        };
        let (refused, operations) = go(0..0);
        assert!(refused == 0 && operations >= 3);
        for first in 0..operations {
            assert!(go(first..first + 1).0 == 1 && go(first..first + 3).0 > 0, "operation {first} of {operations}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    #[ignore = "gate"]
    fn a_flipped_bit_is_found_or_ends_the_frames() {
        let folder = folder("bits");
        let whole = written(&folder, &[0, 1]);
        for bit in 0..8 * whole.len() {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(frames) = reread(&folder, &bytes) {
                assert_eq!(frames, [frame(0)], "bit {bit} was not seen, or hides a frame before the last");
            }
        }
        fs::remove_dir_all(folder).unwrap();
    }

    /// Zeros over any bytes, and bytes taken out: what is read is the beginning of what was written, without the last
    /// frame at most.
    #[test]
    #[ignore = "gate"]
    fn a_hole_before_a_whole_frame_is_damage() {
        let folder = folder("holes");
        let whole = written(&folder, &[0, 1, 4]);
        let starts: Vec<usize> =
            Timelapse::open(&folder).unwrap().frames.iter().map(|frame| frame.at as usize - HEAD).collect();
        let (all, mut refused, mut shorter) = ([frame(0), frame(1), frame(4)], 0, 0);
        for from in starts[0]..whole.len() {
            for to in (from + 1..=whole.len())
                .filter(|to| [1, 4, HEAD].contains(&(to - from)) || starts.contains(to) || *to == whole.len())
            {
                let zeroed = [&whole[..from], &vec![0; to - from], &whole[to..]].concat();
                let cut = [&whole[..from], &whole[to..]].concat();
                for bytes in [zeroed, cut].into_iter().filter(|bytes| *bytes != whole) {
                    match reread(&folder, &bytes) {
                        Err(_) => refused += 1,
                        Ok(frames) => {
                            shorter += 1;
                            let in_the_last = frames == [frame(0), frame(1)] && from >= starts[2];
                            let to_the_end = to == whole.len() && frames == all[..frames.len()];
                            let whole_frames =
                                bytes.len() < whole.len() && starts.contains(&from) && starts.contains(&to);
                            assert!(in_the_last || to_the_end || whole_frames, "{from}..{to}: {} frames", frames.len());
                        }
                    }
                }
            }
        }
        assert!(refused > 100 && shorter > 100, "{refused} {shorter}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn hostile_files_are_refused() {
        let folder = folder("hostile");
        let with = |header: &str, frames: &[u8]| {
            let (length, sum) = ((header.len() as u32).to_le_bytes(), xxh3_64(header.as_bytes()).to_le_bytes());
            [&MAGIC[..], &VERSION.to_le_bytes(), &length, &sum, header.as_bytes(), frames].concat()
        };
        let plain = serde_json::to_string(&header()).unwrap();
        let frame = |length: u32, step: u64, payload: &[u8]| {
            let sum = frame_sum(length, step, 0, payload);
            [&FRAME[..], &length.to_le_bytes(), &step.to_le_bytes(), &[0; 8], &sum.to_le_bytes(), payload].concat()
        };
        let bomb = miniz_oxide::deflate::compress_to_vec(&vec![0; 1 << 20], 9);
        let two = [frame(0, 5, &[]), frame(0, 5, &[])].concat();
        for (bytes, said) in [
            (b"GGUF".to_vec(), "not a time-lapse"),
            ([&MAGIC[..], &[9; 40]].concat(), "version"),
            ([&MAGIC[..], &VERSION.to_le_bytes(), &[0xff; 12]].concat(), "header has 4294967295 bytes"),
            (with("{}", &[]), "cannot be read"),
            (with(&"[".repeat(100_000), &[]), "cannot be read"),
            (with(&plain.replace("[2,3]", "[18446744073709551615,9]"), &[]), "`scores`"),
            (with(&plain.replace("[2,3]", "[99999999,99]"), &[]), "`scores`"),
            (with(&plain.replace("[2,3]", "[2,3,1]"), &[]), "`scores`"),
            (with(&plain.replace("f32", "f64"), &[]), "`scores`"),
            (with(&plain, &[9; 64]), "frame 0"),
            (with(&plain, &frame(u32::MAX, 1, &[])), "frame 0"),
            (with(&plain, &frame(bomb.len() as u32, 1, &bomb)), "frame 0"),
            (with(&plain, &frame(3, 1, b"abc")), "frame 0"),
            (with(&plain, &two), "not after"),
        ] {
            let error = reread(&folder, &bytes).expect_err(said).to_string();
            assert!(error.contains(said), "{said}: {error}");
        }
        assert!(matches!(Timelapse::open(folder.join("none")), Err(TimelapseError::Missing { .. })));
        fs::remove_dir_all(folder).unwrap();
    }
}
