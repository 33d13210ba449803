//! Where parameters lie in files. A [`Link`] says which tensor holds which rows of which of our parameters, and in what
//! layout; one list of links serves reading and writing. A [`Dialect`] is the names that one program has; [`Linked`] is
//! a model beside the files that hold it.

use crate::error::{CheckpointError, Result, refuse};
use crate::store::{Dtype, Store, Stored};
use limpid_core::backend::Backend;
use limpid_core::config::Config;
use limpid_core::model::{FeatureOrder, Model, Param};
use limpid_core::numeric::element::{Element, Major, Values, transpose};
use limpid_core::ops::{MemorySpace, Region};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

/// The names that a program gives to a model's tensors.
pub(crate) trait Dialect: Send + Sync {
    /// Which tensor holds which rows of which parameter.
    fn links(&self, model: &Model) -> Vec<Link>;

    /// The name of a stored tensor as links have it; nothing for a tensor that no result depends on.
    fn canonical(&self, stored: &str, _config: &Config) -> Option<String> {
        Some(stored.into())
    }

    /// The name that a file has for that of a link.
    fn full(&self, name: &str, _config: &Config) -> String {
        name.into()
    }

    /// The `model_type` under which transformers has these names, if it has them.
    fn model_type(&self) -> Option<&'static str> {
        None
    }

    /// Whether its matrices are (in, out).
    fn is_transposed(&self) -> bool {
        false
    }
}

/// A parameter's place in the given memory.
pub fn region_in(param: &Param, space: MemorySpace) -> Region {
    if space == MemorySpace::Param { param.region } else { param.region.in_space(space) }
}

/// The layout of a tensor in another program's file, compared with ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TensorLayout {
    /// As ours: a matrix is (out, in).
    Same,
    /// (in, out), as GPT-2's `Conv1D` has it.
    Transposed,
    /// Rows are features of queries and keys, in another order than ours: Llama's at HuggingFace, where rotary
    /// positions turn row i with row i + turned / 2.
    Features(FeatureOrder),
}

impl TensorLayout {
    /// Where row `i` of ours is in theirs.
    fn row(self, i: usize) -> usize {
        if let TensorLayout::Features(order) = self { order.shown(i) } else { i }
    }
}

/// Where rows of ours lie among those of a tensor of theirs that holds more: `run` rows together, and the next `run`
/// begin `stride` rows after these began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Within {
    /// Their row that is our first.
    pub from: usize,
    /// Rows that lie together.
    pub run: usize,
    /// Rows from the beginning of a run to that of the next.
    pub stride: usize,
    /// All rows of theirs.
    pub of: usize,
}

/// A tensor of theirs and the rows of one parameter of ours that it holds (of a vector: its elements).
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Its name there, without the prefixes that programs put before it.
    pub name: String,
    /// The parameter.
    pub param: String,
    /// Its rows.
    pub rows: Range<usize>,
    /// How they lie.
    pub turn: TensorLayout,
    /// Where they lie, if the tensor holds more.
    pub within: Option<Within>,
    /// Whether rows may follow that are no tokens: vocabularies are padded to round numbers.
    pub padded: bool,
}

/// Rows and columns of a parameter; a vector is a column.
pub(crate) fn extent(param: &Param) -> (usize, usize) {
    if param.is_matrix() { param.region.shape() } else { (param.region.cols, 1) }
}

impl Link {
    /// All of a parameter.
    pub(crate) fn whole(name: String, param: &Param, turn: TensorLayout) -> Link {
        Link { name, param: param.name.clone(), rows: 0..extent(param).0, turn, within: None, padded: false }
    }

    /// Rows of their tensor.
    pub fn their_rows(&self) -> usize {
        self.within.map_or(self.rows.len(), |within| within.of)
    }

    /// The shape there.
    pub fn shape(&self, param: &Param) -> Vec<usize> {
        match (param.is_matrix(), self.turn) {
            (false, _) => vec![self.their_rows()],
            (true, TensorLayout::Transposed) => vec![param.region.cols, self.rows.len()],
            (true, _) => vec![self.their_rows(), param.region.cols],
        }
    }

    /// Their row that is our row `i` of this link.
    pub(crate) fn row(&self, i: usize) -> usize {
        let i = self.turn.row(i);
        self.within.map_or(i, |at| at.from + i / at.run * at.stride + i % at.run)
    }

    /// Ours, from theirs.
    pub(crate) fn ours<'a>(&self, theirs: Cow<'a, [f32]>, cols: usize) -> Cow<'a, [f32]> {
        let rows = self.rows.len();
        match (self.turn, self.within) {
            (TensorLayout::Same, None) => theirs,
            (TensorLayout::Transposed, _) if cols == 1 => theirs,
            (TensorLayout::Transposed, _) => transpose(&theirs, cols, rows).into(),
            _ => (0..rows).flat_map(|i| theirs[self.row(i) * cols..][..cols].iter().copied()).collect(),
        }
    }

    /// Theirs, from all of ours; zeros where it holds more.
    pub fn theirs(&self, param: &Param, ours: &[f32]) -> Vec<f32> {
        let cols = extent(param).1;
        let mine = &ours[self.rows.start * cols..self.rows.end * cols];
        match (self.turn, self.within) {
            (TensorLayout::Same, None) => mine.to_vec(),
            (TensorLayout::Transposed, _) if cols == 1 => mine.to_vec(),
            (TensorLayout::Transposed, _) => transpose(mine, self.rows.len(), cols),
            _ => {
                let mut theirs = vec![0.0; self.their_rows() * cols];
                self.lay(mine, cols, &mut theirs);
                theirs
            }
        }
    }

    /// Writes rows of ours to where they lie in theirs.
    fn lay(&self, mine: &[f32], cols: usize, theirs: &mut [f32]) {
        for (i, row) in mine.chunks_exact(cols).enumerate() {
            theirs[self.row(i) * cols..][..cols].copy_from_slice(row);
        }
    }
}

/// A tensor of theirs from all that it holds; `links` are those of its name, with their parameters.
pub(crate) fn together(links: &[(Link, Param)], values: &dyn Fn(&Param) -> Result<Vec<f32>>) -> Result<Vec<f32>> {
    let (link, param) = &links[0];
    let mut theirs = link.theirs(param, &values(param)?);
    for (link, param) in &links[1..] {
        let cols = extent(param).1;
        link.lay(&values(param)?[link.rows.start * cols..link.rows.end * cols], cols, &mut theirs);
    }
    Ok(theirs)
}

/// Which stored name is which canonical one.
pub(crate) type Names = HashMap<String, String>;

/// The canonical names of a file's tensors: `tidy` returns each, or `None` for a tensor that no result depends on.
pub(crate) fn canonical_names(store: &Store, tidy: impl Fn(&str) -> Option<String>) -> Result<Names> {
    let mut names = Names::new();
    for stored in store.names() {
        let Some(name) = tidy(stored) else { continue };
        if let Some(other) = names.insert(name.clone(), stored.to_string()) {
            return refuse(store.path(), format!("`{other}` and `{stored}` are both `{name}`: keep one of them"));
        }
    }
    Ok(names)
}

/// A model and the files that hold it: which of their tensors are what of it.
#[derive(Clone, Copy)]
pub(crate) struct Linked<'m, 's> {
    pub links: &'m [Link],
    pub model: &'m Model,
    pub store: &'s Store,
    pub names: &'m Names,
}

/// The type of some rows, and each as it is stored.
pub type StoredRows<'a> = (Dtype, Vec<&'a [u8]>);

/// Some rows of a parameter, quantised.
type RowsOfBlocks<'s> = (Element, Cow<'s, [u8]>);

impl<'s> Linked<'_, 's> {
    /// The links of a parameter.
    fn links_of(&self, param: &Param) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(|link| link.param == param.name)
    }

    /// The tensor of a link, of the shape it must have.
    fn find(&self, link: &Link) -> Result<Stored<'s>> {
        let param = self.model.param(&link.param).expect("links are of the model's parameters");
        let Some(stored) = self.names.get(&link.name).and_then(|name| self.store.get(name)) else {
            return Err(CheckpointError::Missing { path: self.store.path().into(), tensor: link.name.clone() });
        };
        let wanted = link.shape(param);
        let longer =
            || stored.shape.len() == wanted.len() && stored.shape[0] >= wanted[0] && stored.shape[1..] == wanted[1..];
        if stored.shape != wanted && !(link.padded && longer()) {
            let (found, path) = (stored.shape.to_vec(), stored.path().into());
            return Err(CheckpointError::Shape { path, tensor: stored.name.into(), found, wanted });
        }
        if let Dtype::Other(_) = stored.dtype {
            stored.values()?; // the error that says so
        }
        Ok(stored)
    }

    /// The values of one parameter of the model, put together from its links.
    ///
    /// # Errors
    /// If a tensor is missing, has another shape, or has a type that limpid cannot read.
    pub fn values(&self, param: &Param) -> Result<Cow<'s, [f32]>> {
        let (rows, cols) = extent(param);
        let mut all: Option<Vec<f32>> = None;
        for link in self.links_of(param) {
            // rows of padding are left behind
            let theirs = match self.find(link)?.values()? {
                Cow::Borrowed(v) => Cow::Borrowed(&v[..link.their_rows() * cols]),
                Cow::Owned(mut v) => {
                    v.truncate(link.their_rows() * cols);
                    Cow::Owned(v)
                }
            };
            let ours = link.ours(theirs, cols);
            if link.rows == (0..rows) {
                return Ok(ours);
            }
            let all = all.get_or_insert_with(|| vec![0.0; rows * cols]);
            all[link.rows.start * cols..link.rows.end * cols].copy_from_slice(&ours);
        }
        Ok(all.expect("every parameter has a link").into())
    }

    /// A parameter that is one tensor of theirs, whose rows or columns are in our order: what goes from its file to
    /// where it is needed in one step.
    fn as_it_lies(&self, param: &Param) -> Result<Option<Values<'s>>> {
        let (rows, cols) = extent(param);
        let Some(link) = self.links_of(param).find(|link| link.rows == (0..rows)) else { return Ok(None) };
        let major = match link.turn {
            TensorLayout::Transposed if param.is_matrix() => Major::Columns,
            TensorLayout::Same | TensorLayout::Transposed => Major::Rows,
            TensorLayout::Features(_) => return Ok(None),
        };
        let from = match link.within {
            None => 0,
            Some(within) if within.run == rows => within.from,
            Some(_) => return Ok(None),
        };
        let raw = self.find(link)?.raw()?;
        // rows of padding are left behind
        let own = |element: Element| element.bytes(from * cols)..element.bytes((from + rows) * cols);
        Ok(raw.map(|(element, bytes)| Values { element, bytes: &bytes[own(element)], major }))
    }

    /// A parameter whose rows are quantised tensors of theirs, one after the other, or in another order: it need not be
    /// made f32s to be one.
    fn in_parts(&self, param: &Param) -> Result<Option<Vec<RowsOfBlocks<'s>>>> {
        let (rows, cols) = extent(param);
        let (mut parts, mut next) = (vec![], 0);
        for link in self.links_of(param) {
            let raw = self.find(link)?.raw()?;
            let Some((element @ Element::Blocks(_), bytes)) = raw else { return Ok(None) };
            if link.rows.start != next || link.turn == TensorLayout::Transposed {
                return Ok(None);
            }
            next = link.rows.end;
            let (count, wide) = (link.rows.len(), element.bytes(cols));
            let rows = match (link.turn, link.within) {
                // rows of padding are left behind
                (TensorLayout::Same, None) => Cow::Borrowed(&bytes[..count * wide]),
                _ => (0..count).flat_map(|i| &bytes[link.row(i) * wide..][..wide]).copied().collect(),
            };
            parts.push((element, rows));
        }
        Ok(Some(parts).filter(|_| next == rows))
    }

    /// The type of some rows of a parameter, and each row as it is stored, in our order; none if they are of several
    /// types, or columns there.
    pub fn rows_as_stored(&self, param: &Param, rows: Range<usize>) -> Result<Option<StoredRows<'s>>> {
        let cols = extent(param).1;
        let mut held: Vec<&Link> = self.links_of(param).collect();
        held.sort_by_key(|link| link.rows.start);
        let (mut found, mut all) = (None, vec![]);
        for link in held {
            let (from, to) = (rows.start + all.len(), link.rows.end.min(rows.end));
            if !link.rows.contains(&from) || to <= from {
                continue;
            }
            let stored = self.find(link)?;
            stored.raw()?; // the file is what it was
            let one = stored.dtype.bytes(&[cols]);
            let (Some(wide), true) = (one, found.get_or_insert(stored.dtype) == &stored.dtype) else { return Ok(None) };
            if link.turn == TensorLayout::Transposed && cols > 1 {
                return Ok(None);
            }
            all.extend((from..to).map(|i| &stored.bytes[link.row(i - link.rows.start) * wide..][..wide]));
        }
        Ok(found.filter(|_| all.len() == rows.len()).map(|dtype| (dtype.clone(), all)))
    }

    /// Checks that every parameter that has a link is there and that nothing is left over, then writes them to `space`
    /// of the backend.
    ///
    /// # Errors
    /// As [`Linked::values`], or if the file has a tensor that the model does not use. The backend is then unchanged,
    /// unless the file changed while it was being read.
    pub fn load(&self, backend: &mut dyn Backend, space: MemorySpace) -> Result<()> {
        self.check()?;
        for param in self.model.params.iter().filter(|param| self.links_of(param).next().is_some()) {
            let region = region_in(param, space);
            if let Some(stored) = self.as_it_lies(param)? {
                backend.upload(region, stored)?;
            } else if let Some(parts) = self.in_parts(param)? {
                let rows = parts.iter();
                let rows = rows.map(|(element, bytes)| Values { element: *element, bytes, major: Major::Rows });
                backend.upload_parts(region, &rows.collect::<Vec<_>>())?;
            } else {
                backend.write(region, &self.values(param)?)?;
            }
            for link in self.links_of(param) {
                self.find(link)?.release();
            }
        }
        self.store.check()
    }

    /// Checks that every parameter is there, of its shape, and that nothing is left over.
    pub fn check(&self) -> Result<()> {
        for link in self.links {
            self.find(link)?;
        }
        let mut extra: Vec<&str> = self.names.keys().map(String::as_str).collect();
        extra.retain(|name| !self.links.iter().any(|link| link.name == *name));
        let Some(name) = extra.iter().min() else { return Ok(()) };
        let what = format!(
            "it has a tensor `{}` that its configuration knows nothing of{}: the two belong to different models, or \
             the model has a part that limpid does not support",
            self.names[*name],
            match extra.len() {
                1 => String::new(),
                n => format!(" (and {} more)", n - 1),
            }
        );
        refuse(self.store.path(), what)
    }
}
