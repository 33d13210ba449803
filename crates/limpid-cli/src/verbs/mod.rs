//! One file a verb. Verbs call no verbs: what several of them need is in `look`, `machine`, `models`, `records` and
//! `tokenizers`.

pub mod bench;
pub mod chat;
pub mod check;
pub mod convert;
pub mod data;
pub mod direction;
pub mod doctor;
pub mod embed;
pub mod eval;
pub mod generate;
pub mod inspect;
pub mod learn;
#[cfg(feature = "study")]
pub mod lesson;
pub mod pages;
pub mod params;
pub mod plan;
pub mod race;
pub mod replay;
pub mod report;
#[cfg(feature = "serve")]
pub mod serve;
#[cfg(feature = "serve")]
pub mod site;
pub mod sweep;
pub mod timelapse;
pub mod tokenize;
pub mod train;
#[cfg(feature = "study")]
pub mod walk;
