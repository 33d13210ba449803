//! Study: [`walk`] reads five documents on the transformer on live models, and [`lessons`] are short experiments that
//! test common claims about transformers.
//!
//! Nothing of what limpid is needs this crate; it looks at models as any other program that uses limpid can.

use limpid_draw::view::{Grid, View};

/// A row of cells: the text of each value.
macro_rules! row {
    ($($cell:expr),+ $(,)?) => {
        vec![$($cell.to_string()),+]
    };
}

pub mod lessons;
pub mod walk;

/// A table of texts.
fn grid<H: Into<String>>(
    title: impl Into<String>,
    headers: impl IntoIterator<Item = H>,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> View {
    let headers = headers.into_iter().map(Into::into).collect();
    View::Grid(Grid { title: title.into(), headers, rows: rows.into_iter().collect() })
}
