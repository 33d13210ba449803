//! What all of limpid's crates use, none of it about transformers: [`budget`], what work for others may take;
//! [`random`], draws as functions of their coordinates; [`nearest`], [`plural`], [`units`] and [`words`], for messages;
//! [`threads`], which the system may refuse; with the feature `files`, [`files`], which are read up to a limit and
//! replaced atomically, and [`contain`], for third-party code that may panic.

pub mod budget;
#[cfg(feature = "files")]
pub mod contain;
#[cfg(feature = "files")]
pub mod files;
pub mod nearest;
pub mod plural;
pub mod random;
pub mod threads;
pub mod units;
pub mod words;
