//! Unpacks gzip and zstd.

use super::inputs::TextSource;
use std::io::{self, BufRead, Read};

/// How a file is packed.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Packing {
    Gzip,
    Zstd,
}

/// Unpacks all members of a gzip file, or all frames of a zstd file. Zeros after a member of gzip are padding, as in
/// gzip (tapes and block devices need it) and in Python, which also reads a member that follows them.
pub(super) struct Unpacked {
    packing: Packing,
    state: Unpacking,
}

enum Unpacking {
    Between(TextSource),
    Within(Member),
    Over,
}

impl Unpacked {
    /// What `source` unpacks to.
    pub(super) fn new(packing: Packing, source: TextSource) -> Unpacked {
        Unpacked { packing, state: Unpacking::Between(source) }
    }
}

impl Read for Unpacked {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(&mut self.state, Unpacking::Over) {
                Unpacking::Over => return Ok(0),
                Unpacking::Between(mut source) => {
                    let buffer = source.fill_buf()?;
                    let is_padding = |byte: &&u8| self.packing == Packing::Gzip && **byte == 0;
                    let (all, padding) = (buffer.len(), buffer.iter().take_while(is_padding).count());
                    if all == 0 {
                        return Ok(0);
                    }
                    source.consume(padding);
                    self.state = if padding < all {
                        Unpacking::Within(Member::begin(self.packing, source)?)
                    } else {
                        Unpacking::Between(source)
                    };
                }
                Unpacking::Within(mut member) => {
                    let n = member.read(to)?;
                    if n > 0 || to.is_empty() {
                        self.state = Unpacking::Within(member);
                        return Ok(n);
                    }
                    self.state = Unpacking::Between(member.end()?);
                }
            }
        }
    }
}

/// A member of a gzip file, or a frame of a zstd file.
enum Member {
    Gzip(Box<flate2::bufread::GzDecoder<TextSource>>),
    Zstd(Box<ruzstd::decoding::StreamingDecoder<TextSource, ruzstd::decoding::FrameDecoder>>),
}

impl Member {
    fn begin(packing: Packing, source: TextSource) -> io::Result<Member> {
        Ok(match packing {
            Packing::Gzip => Member::Gzip(Box::new(flate2::bufread::GzDecoder::new(source))),
            Packing::Zstd => {
                let frame = ruzstd::decoding::StreamingDecoder::new(source).map_err(io::Error::other)?;
                Member::Zstd(Box::new(frame))
            }
        })
    }

    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Member::Gzip(member) => member.read(to),
            Member::Zstd(frame) => frame.read(to),
        }
    }

    /// What follows, once everything has been read.
    ///
    /// # Errors
    /// If it is not whole. (That of gzip has been checked.)
    fn end(self) -> io::Result<TextSource> {
        let frame = match self {
            Member::Gzip(member) => return Ok(member.into_inner()),
            Member::Zstd(frame) => frame,
        };
        if !frame.decoder.is_finished() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let sums = (frame.decoder.get_checksum_from_data(), frame.decoder.get_calculated_checksum());
        if sums.0.is_some_and(|sum| sums.1 != Some(sum)) {
            return Err(io::Error::other("its checksum does not match"));
        }
        Ok(frame.into_inner())
    }
}
