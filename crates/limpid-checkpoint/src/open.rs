//! A model in its files: [`Checkpoint::open`] recognises the format, and fits configuration, weights, tokenizer and
//! adapters together.

use crate::adapter::{self, Adapter};
use crate::carried::{Carried, GENERATION, SentenceRecipe, chat_template, ends};
use crate::error::{CheckpointError, Result, refuse};
use crate::formats::links::{Dialect, Link, Linked, Names, StoredRows};
use crate::formats::{Format, Place, ReadModel, outline};
use crate::gguf;
use crate::store::{Access, Dtype, Store, Stored};
use limpid_base::plural::plural;
use limpid_core::backend::Backend;
use limpid_core::config::Config;
use limpid_core::model::{Model, Param};
use limpid_core::ops::MemorySpace;
use limpid_tokenizer::Tokenizer;
use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A model in its files, opened and fitted together; the weights are still in their files.
pub struct Checkpoint {
    /// The folder or file.
    pub path: PathBuf,
    /// Whose files they are.
    pub format: Format,
    /// Which transformer.
    pub config: Config,
    /// Its tokenizer, if there is one.
    pub tokenizer: Option<Tokenizer>,
    /// How conversations are written for it, in Jinja, if it was trained on any: chat_template.jinja or what
    /// tokenizer_config.json or GGUF has in its place. `data::chat` knows ours.
    pub chat_template: Option<String>,
    /// Tensors in the files on which no result depends; they are left out when the model is written.
    pub left_out: Vec<String>,
    /// What its folder has beside all this, which goes along when the model is written.
    pub carried: Carried,
    /// The adapters that are merged into its weights.
    pub adapters: Vec<Adapter>,
    /// What a GGUF file says beside its tokenizer's tables: of its author, its license, how it was made.
    pub metadata: gguf::Metadata,
    /// Its keys that change no number and that limpid writes to GGUF only.
    pub unused: Vec<String>,
    /// The tokens that end a text or a turn, by a folder's files.
    ends: Vec<u32>,
    /// The ids of tokens that its files do not have.
    added: Range<usize>,
    /// How files are read, an adapter's too.
    access: Access,
    pub(crate) dialect: Arc<dyn Dialect>,
    pub(crate) store: Store,
    pub(crate) names: Names,
}

/// A table with rows that no token has.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PaddedTable {
    /// The tensor's name in the file.
    pub tensor: String,
    /// The rows that it has.
    pub rows: usize,
    /// How many of them, the first, are read.
    pub read: usize,
}

impl Checkpoint {
    /// Opens `path` and recognises what it is: a folder of limpid's or HuggingFace's, a `.gguf`, llm.c's `.bin`, or an
    /// adapter whose base model is where the adapter says.
    ///
    /// The checkpoint reads weights in place: the files are mapped into memory, so that a model of many gigabytes opens
    /// at once and is in memory only once. In return, no program may write into the files or cut them while the
    /// checkpoint exists, because no system keeps a mapped file from changing, and memory that changes behind a
    /// reference is undefined behaviour in Rust. Replace files by renaming new ones, as limpid and the hub's clients
    /// do. A change is found before values are read; but a file that is cut in that moment ends the process. Where
    /// others may do so, [`Checkpoint::open_copied`] maps nothing.
    ///
    /// # Errors
    /// If a file is missing, damaged, unsupported, or does not fit the others; the error names the file and the reason.
    pub fn open(path: &Path) -> Result<Checkpoint> {
        Checkpoint::open_in(path, Access::default())
    }

    /// [`Checkpoint::open`] with the files' bytes copied into memory. Whatever becomes of the files then, the model
    /// stays. It takes as much memory as the files have bytes, and as long as reading them.
    ///
    /// # Errors
    /// As [`Checkpoint::open`], and if a file changes while it is read.
    pub fn open_copied(path: &Path) -> Result<Checkpoint> {
        Checkpoint::open_in(path, Access { mapped: false, ..Access::default() })
    }

    /// [`Checkpoint::open`], with (`verified`) or without checking the checksums in limpid's files. The check runs
    /// once, before the first value is read. Other programs' files have no checksums.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open_as(path: &Path, verified: bool) -> Result<Checkpoint> {
        Checkpoint::open_in(path, Access { verified, ..Access::default() })
    }

    fn open_in(path: &Path, access: Access) -> Result<Checkpoint> {
        if adapter::is_one(path) {
            let base = adapter::base_of(path)?;
            return Checkpoint::open_in(&base, access)?.with_adapter(path);
        }
        let place = Place::open(path, access)?;
        let Some(format) = Format::detect(&place) else {
            let what = "it is not a model: limpid opens a folder with config.json and safetensors";
            return refuse(path, format!("{what}, {}", Format::files()));
        };
        let model = Checkpoint::of(path, format, access, format.implementation().read(&place)?);
        model.check()?;
        if place.config.is_some() && adapter::is_in(path) { model.with_adapter(path) } else { Ok(model) }
    }

    fn of(path: &Path, format: Format, access: Access, model: ReadModel) -> Checkpoint {
        #[rustfmt::skip]
        let ReadModel {
            config, store, names, dialect, tokenizer, chat_template, left_out, carried, ends, metadata, unused,
        } = model;
        Checkpoint {
            path: path.into(),
            format,
            config,
            tokenizer,
            chat_template,
            left_out,
            carried,
            adapters: vec![],
            metadata,
            unused,
            ends,
            added: 0..0,
            access,
            dialect,
            store,
            names,
        }
    }

    /// Checks that tokenizer, configuration and weights belong together.
    fn check(&self) -> Result<()> {
        let vocab_size = self.config.vocab_size;
        if let Some(tokenizer) = &self.tokenizer
            && tokenizer.vocab_size() > vocab_size
        {
            let (path, name, tokens) = (self.path.clone(), tokenizer.name().into(), tokenizer.vocab_size());
            return Err(CheckpointError::Mismatch { path, name, tokens, vocab_size });
        }
        let blocks = if self.config.shared_blocks { 1 } else { self.config.n_layer };
        let tensors = self.store.names().count();
        // queries, keys and values, what follows them, and two of the feed-forward network
        if blocks > tensors / 4 {
            let blocks = plural(blocks, "block");
            let what =
                format!("its configuration has {blocks} of 4 tensors or more, but there are only {tensors} tensors");
            return refuse(self.store.path(), what);
        }
        let model = self.outline()?;
        self.linked(&self.dialect.links(&model), &model).check()
    }

    /// The same model with the adapter in the folder `path`, merged after those that it has already.
    ///
    /// # Errors
    /// As [`Adapter::open`], if the adapter was trained on other weights, or if it is merged already.
    pub fn with_adapter(self, path: &Path) -> Result<Checkpoint> {
        let place = |path: &Path| path.canonicalize().unwrap_or(path.into());
        if self.adapters.iter().any(|adapter| place(&adapter.path) == place(path)) {
            return refuse(path, "this adapter is merged into the model already: give it once");
        }
        if let Some(base) = adapter::base(path)?
            && !base.is(&self)?
        {
            let (here, base) = (self.path.display(), base.path.display());
            let what =
                format!("the adapter was made for the model {base}, and {here} is another, or has changed since");
            return refuse(path, what);
        }
        let model = self.outline()?;
        let likely = [Arc::clone(&self.dialect), self.dialect_of_adapters()];
        let adapter = Adapter::open_in(&likely, path, &model, &self.path, self.access)?;
        let tokenizer = match self.tokenizer {
            None if path.is_dir() => Tokenizer::open(path)?,
            tokenizer => tokenizer,
        };
        let chat_template = chat_template(path)?.or(self.chat_template);
        let adapters = self.adapters.into_iter().chain([adapter]).collect();
        // an adapter of conversations ends its turns
        let taught = if path != self.path && path.join(GENERATION).exists() { ends(path)? } else { vec![] };
        let (ends, carried) = if taught.is_empty() {
            (self.ends, self.carried)
        } else {
            (taught.clone(), self.carried.with_ends(taught))
        };
        Ok(Checkpoint { adapters, tokenizer, chat_template, ends, carried, ..self })
    }

    /// The same with a tokenizer that has more tokens. Their rows, in the token table and in the head, are the mean of
    /// all others' (Hewitt 2021): beside them no other token's probability changes much.
    #[must_use]
    pub fn with_more_tokens(self, tokenizer: Tokenizer) -> Checkpoint {
        let had = self.tokenizer.as_ref().map_or(self.config.vocab_size, Tokenizer::vocab_size);
        Checkpoint { added: had..tokenizer.vocab_size().max(had), tokenizer: Some(tokenizer), ..self }
    }

    /// The values of a parameter with a row for each token, with those of the added ones, as `model` has them.
    fn with_added_rows(&self, model: &Model, param: &Param) -> Result<Option<Vec<f32>>> {
        if self.added.is_empty() || !param.is_vocabulary() {
            return Ok(None);
        }
        let base = self.outline()?;
        let stored = base.param(&param.name).expect("the models differ in rows alone");
        let mut values = self.values_of_base(&base, stored)?.into_owned();
        let cols = values.len() / base.config.vocab_size;
        let (known, all) = (self.added.start, model.config.vocab_size);
        let mean = |col: usize| {
            let sum: f64 = (0..known).map(|row| f64::from(values[row * cols + col])).sum();
            (sum / known as f64) as f32
        };
        let mean: Vec<f32> = (0..cols).map(mean).collect();
        values.truncate(known * cols);
        values.extend(mean.iter().cycle().take((all - known) * cols));
        Ok(Some(values))
    }

    /// A model of its parameters, and its files.
    fn linked<'m, 's: 'm>(&'s self, links: &'m [Link], model: &'m Model) -> Linked<'m, 's> {
        Linked { links, model, store: &self.store, names: &self.names }
    }

    pub(crate) fn outline(&self) -> Result<Model> {
        outline(&self.path, &self.config)
    }

    /// Writes the weights into a backend made for `model`.
    ///
    /// # Errors
    /// If a tensor is missing, has another shape, or has a type that limpid cannot read; the backend is then unchanged.
    pub fn load(&self, model: &Model, backend: &mut dyn Backend) -> Result<()> {
        if !self.added.is_empty() {
            let base = self.outline()?;
            self.linked(&self.dialect.links(&base), &base).check()?;
            for param in model.params.iter().filter(|p| !p.is_adapter()) {
                backend.write(param.region, &self.values(model, param)?)?;
            }
            return self.store.check();
        }
        self.linked(&self.dialect.links(model), model).load(backend, MemorySpace::Param)?;
        for param in model.params.iter().filter(|p| self.is_adapted(p)) {
            backend.write(param.region, &self.values(model, param)?)?;
        }
        Ok(())
    }

    /// The values of one parameter of `model`.
    ///
    /// # Errors
    /// As [`Checkpoint::load`].
    pub fn values(&self, model: &Model, param: &Param) -> Result<Cow<'_, [f32]>> {
        if let Some(values) = self.with_added_rows(model, param)? {
            return Ok(values.into());
        }
        let values = self.values_of_base(model, param)?;
        self.adapters.iter().try_fold(values, |values, adapter| adapter.merge(param, values))
    }

    /// The values of one parameter without what adapters add to them.
    pub(crate) fn values_of_base(&self, model: &Model, param: &Param) -> Result<Cow<'_, [f32]>> {
        self.linked(&self.dialect.links(model), model).values(param)
    }

    /// Whether an adapter adds to a parameter.
    pub fn is_adapted(&self, param: &Param) -> bool {
        self.adapters.iter().any(|adapter| adapter.adapts(param))
    }

    /// The tokens that end a text or a turn by generation_config.json, or else config.json, of a folder; of a file
    /// none.
    pub fn end_tokens(&self) -> Vec<u32> {
        self.ends.clone()
    }

    /// How sentence-transformers makes vectors with it, if its folder says so, or a GGUF file by its `pooling_type`.
    ///
    /// # Errors
    /// As [`SentenceRecipe::open`].
    pub fn sentence_recipe(&self) -> Result<Option<SentenceRecipe>> {
        self.format.implementation().sentence_recipe(&self.path, &self.metadata)
    }

    /// How the rows of every parameter of `model` are stored: its name, rows of it, their type.
    pub fn stored(&self, model: &Model) -> Vec<(String, Range<usize>, Dtype)> {
        let stored = |link: Link| {
            let dtype = self.store.get(self.names.get(&link.name)?)?.dtype.clone();
            Some((link.param, link.rows, dtype))
        };
        self.dialect.links(model).into_iter().filter_map(stored).collect()
    }

    /// How rows of a parameter of `model` are stored: those of one tensor after those of another.
    pub fn stored_as(&self, model: &Model, param: &Param) -> Vec<(Range<usize>, Dtype)> {
        let parts = self.stored(model).into_iter().filter(|(name, ..)| *name == param.name);
        parts.map(|(_, rows, dtype)| (rows, dtype)).collect()
    }

    /// Tensors with more rows than the configuration has tokens. (llm.c's files pad their table always, and say so.)
    ///
    /// # Errors
    /// If the configuration is not that of a model.
    pub fn padded(&self) -> Result<Vec<PaddedTable>> {
        let model = self.outline()?;
        let more = |link: &Link| {
            let stored = self.store.get(self.names.get(&link.name)?)?;
            let (has, read) = (*stored.shape.first()?, *link.shape(model.param(&link.param)?).first()?);
            (link.padded && has > read).then(|| PaddedTable { tensor: stored.name.to_string(), rows: has, read })
        };
        let links = if self.format.implementation().pads_tables() { vec![] } else { self.dialect.links(&model) };
        Ok(links.iter().filter_map(more).collect())
    }

    /// Whether any of its tensors has blocks.
    pub fn is_quantised(&self) -> bool {
        self.tensors().any(|tensor| matches!(tensor.dtype, Dtype::Blocks(_)))
    }

    fn tensors(&self) -> impl Iterator<Item = Stored<'_>> {
        self.store.names().filter_map(|name| self.store.get(name))
    }

    /// What goes along as it is when this becomes a model of a format, what is left behind, and the keys of a GGUF file
    /// that the format has no place for. `carried`: what is taken of its folder; `keep_types`: tensors keep their
    /// types, of which some keys speak.
    pub fn parted(&self, carried: &Carried, format: Format, keep_types: bool) -> [Vec<String>; 3] {
        let to = format.implementation();
        let [along, mut behind] = carried.parted(format.is_folder());
        if !to.has_chat_template() && self.chat_template.is_some() {
            behind.push("the chat template".into());
        }
        let unsaid = self.unused.iter().filter(|key| !to.keeps_key(key, keep_types)).cloned().collect();
        [along, behind, unsaid]
    }

    /// All that a GGUF file says, with its tokenizer's tables; nothing of other formats.
    ///
    /// # Errors
    /// If the file has changed since it was opened.
    pub fn whole_metadata(&self) -> Result<Option<gguf::Metadata>> {
        self.format.implementation().metadata(&self.path)
    }

    /// Rows of a parameter of `model` as they are stored, where no arithmetic is between the two: see
    /// [`ModelData::rows`](crate::ModelData::rows).
    pub fn rows(&self, model: &Model, param: &Param, rows: Range<usize>) -> Option<StoredRows<'_>> {
        let found = self.linked(&self.dialect.links(model), model).rows_as_stored(param, rows);
        found.ok().flatten().filter(|_| !self.is_adapted(param))
    }

    /// How its matrices are stored: as the token table is, but f32 for a mixture with blocks, which one type cannot
    /// hold.
    pub fn dtype(&self) -> Dtype {
        let largest = self.tensors().max_by_key(|tensor| tensor.shape.iter().product::<usize>());
        let dtype = largest.map_or(Dtype::F32, |tensor| tensor.dtype.clone());
        let mixed = self.tensors().any(|tensor| matches!(tensor.dtype, Dtype::Blocks(_)) && *tensor.dtype != dtype);
        if mixed { Dtype::F32 } else { dtype }
    }

    /// The tensors as they are stored.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Verifies the checksum of weights or an adapter that limpid wrote. It checks the files that were opened, even if
    /// others have replaced them since. Other programs' files have no checksum, and neither do models of several files.
    ///
    /// # Errors
    /// If a single bit was changed.
    pub fn check_sum(&self) -> Result<()> {
        self.store.check()?;
        self.adapters.iter().try_for_each(|adapter| adapter.store().check())
    }

    /// The first NaN or infinity: its tensor, and the index in it.
    ///
    /// # Errors
    /// If a tensor is of a type that is not read.
    pub fn not_finite(&self) -> Result<Option<(String, usize)>> {
        for tensor in self.names.values().filter_map(|name| self.store.get(name)) {
            if let Some(at) = tensor.not_finite()? {
                return Ok(Some((tensor.name.into(), at)));
            }
        }
        Ok(None)
    }
}
