//! The study's tests, in one program: walks and lessons, the numbers that the documents print, and the equalities that
//! they state.

#[path = "../../../limpid/tests/library/common/mod.rs"]
mod common;
mod equivalences;
mod goldens;
mod lessons;
mod reasons;
mod walks;

/// As limpid's own tests have it: the shared parts count what is allocated.
#[global_allocator]
static COUNTING: common::counting::Counting = common::counting::Counting;
