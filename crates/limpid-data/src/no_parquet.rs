//! In place of `parquet` without that feature: no file of its kind can be opened.

use super::corpus_error::{CorpusError, bad};
use super::inputs::{Input, Unit};

/// There are none.
pub(super) enum Rows {}

impl Rows {
    pub fn open(input: &Input, _: Option<&str>) -> Result<Rows, CorpusError> {
        let what =
            "parquet needs the feature `parquet`, which this program was built without: build it with that feature";
        Err(bad(&input.path, what))
    }

    pub fn next(&mut self, _: &Input) -> Result<Option<Unit>, CorpusError> {
        match *self {}
    }
}
