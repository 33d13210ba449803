//! Who asks to stop: Ctrl-C, the system, a terminal that is closed.

#[cfg(unix)]
use crate::machine::ignores_closed_terminal;
use crate::{dashboard, show};
#[cfg(unix)]
use anyhow::Context;
use anyhow::Result;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set when the user or the system asks to stop (Ctrl-C, SIGTERM, a terminal that is closed); after a second Ctrl-C the
/// process ends at once.
pub fn interrupt() -> Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    let flag = asked.clone();
    on_signal(move |urgent| {
        let again = flag.swap(true, Ordering::Relaxed);
        // a closed terminal sends SIGHUP two or three times: nobody is in a hurry there
        if again && urgent {
            dashboard::restore();
            std::process::exit(130);
        }
        if !again && !dashboard::active() {
            show::interrupted("stopping after this step; once more to stop at once");
        }
    })?;
    Ok(asked)
}

/// Set by each Ctrl-C at a terminal, for a caller that clears it again: there it ends an answer and not the program.
/// Whatever else asks to stop ends the process, and so does Ctrl-C where stdin is no terminal.
pub fn interrupted_answer() -> Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    let flag = asked.clone();
    let terminal = std::io::stdin().is_terminal();
    on_signal(move |urgent| {
        if !urgent || !terminal {
            std::process::exit(130);
        }
        flag.store(true, Ordering::Relaxed);
    })?;
    Ok(asked)
}

/// Calls `f` at Ctrl-C (`true`: a person waits), when the process is told to end and when its terminal is closed,
/// unless that is to be ignored.
#[cfg(unix)]
pub fn on_signal(f: impl Fn(bool) + Send + 'static) -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let ignored = ignores_closed_terminal();
    let caught = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| *signal != SIGHUP || !ignored);
    let mut signals = signal_hook::iterator::Signals::new(caught)?;
    let listen = move || signals.forever().for_each(|signal| f(signal == SIGINT));
    let refused = "the system refuses a thread that waits for Ctrl-C: allow more processes (ulimit -u)";
    std::thread::Builder::new().spawn(listen).context(refused)?;
    Ok(())
}

#[cfg(not(unix))]
pub fn on_signal(f: impl Fn(bool) + Send + 'static) -> Result<()> {
    Ok(ctrlc::set_handler(move || f(true))?)
}
