//! Lines that may be longer than memory: read up to a limit.

use std::io::{self, BufRead};

/// Reads a line into `to`, its end too, and stops one byte beyond `most`, since a line that is too long may have no
/// end. Returns how many bytes were read: 0 at the end of the source, more than `to` got if the line is too long.
///
/// # Errors
/// If the source fails.
pub fn read_line(source: &mut dyn BufRead, to: &mut Vec<u8>, most: usize) -> io::Result<u64> {
    read_whole_line(&mut io::Read::take(&mut *source, most as u64 + 1), to, most)
}

/// The same, but reads a line that is too long to its end, so that the next one can follow.
pub(super) fn read_whole_line(source: &mut dyn BufRead, to: &mut Vec<u8>, most: usize) -> io::Result<u64> {
    let mut found = 0;
    loop {
        let buffer = match source.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            buffer => buffer?,
        };
        let end = buffer.iter().position(|b| *b == b'\n').map(|at| at + 1);
        let used = end.unwrap_or(buffer.len());
        to.extend_from_slice(&buffer[..used.min(most - to.len())]);
        source.consume(used);
        found += used as u64;
        if end.is_some() || used == 0 {
            return Ok(found);
        }
    }
}
