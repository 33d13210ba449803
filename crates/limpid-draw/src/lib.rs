//! Showing what limpid-trace reads: `view` cuts a tensor into matrices with words at their rows and columns; `table`
//! and `heat` print them, `picture` makes files of them, `diagram` draws a model, `glance` sums up a run.

pub mod diagram;
pub mod glance;
mod heat;
pub mod palette;
pub mod picture;
pub mod pool;
pub mod table;
pub mod view;
