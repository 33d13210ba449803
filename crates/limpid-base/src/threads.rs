//! Whether the system still gives threads: for crates that panic, or wait for ever, where it refuses one.

use std::io;
use std::sync::mpsc::channel;
use std::thread::Builder;

/// Starts so many threads at once, and ends them again.
///
/// # Errors
/// The system's, if it refuses one.
pub fn can_start(count: usize) -> io::Result<()> {
    let one = |_| {
        let (end, ended) = channel::<()>();
        let wait = move || _ = ended.recv();
        Ok((end, Builder::new().spawn(wait)?))
    };
    let mut refused = Ok(());
    let started: Vec<_> = (0..count).map(one).map_while(|one| one.map_err(|error| refused = Err(error)).ok()).collect();
    for (end, thread) in started {
        drop(end);
        _ = thread.join();
    }
    refused
}

#[cfg(test)]
mod tests {
    #[test]
    fn threads_are_started_and_ended() {
        for count in [0, 1, 7] {
            super::can_start(count).unwrap();
        }
    }
}
