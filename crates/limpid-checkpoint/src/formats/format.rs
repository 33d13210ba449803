//! What a format of models is: [`ModelFormat`] has all that limpid asks of one. To add a format: a file with an
//! implementation, and a row in the table of [`super`].

use super::links::{Dialect, Names};
use super::writing::Writing;
use crate::carried::{Carried, SentenceRecipe, chat_template, ends};
use crate::error::{CheckpointError, Result, refuse};
use crate::files::{LARGEST_JSON, at};
use crate::gguf::Metadata;
use crate::safetensors_file;
use crate::store::{Access, Dtype, Store};
use limpid_base::files;
use limpid_core::config::Config;
use limpid_tokenizer::{Tokenizer, TokenizerError};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// A format: how its models are recognised, read and written.
pub(crate) trait ModelFormat: Sync {
    /// What its files' names end in, and what messages call such a file; nothing where a model is a folder.
    fn file(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    /// Whether a place holds such a model, damaged ones too. Formats are asked in the table's order.
    fn detect(&self, place: &Place) -> bool;

    /// Reads a model, all but its weights' values.
    fn read(&self, place: &Place) -> Result<ReadModel>;

    /// Writes a model, after it has found that the format can express it.
    fn write(&self, writing: &Writing) -> Result<()>;

    /// Whether each tensor may have a type of its own, blocks too. Rows are then taken over as they are stored.
    fn mixes_types(&self) -> bool {
        false
    }

    /// The type that it has for matrices of this type.
    fn storable(&self, dtype: Dtype) -> Dtype {
        if matches!(dtype, Dtype::Blocks(_)) { Dtype::F32 } else { dtype }
    }

    /// All keys and values of a file that is made of such.
    fn metadata(&self, _path: &Path) -> Result<Option<Metadata>> {
        Ok(None)
    }

    /// How sentence-transformers makes vectors with a model, as far as its files say it.
    fn sentence_recipe(&self, path: &Path, _metadata: &Metadata) -> Result<Option<SentenceRecipe>> {
        SentenceRecipe::open(path)
    }

    /// Whether its token table always has rows without a token, and the file says how many.
    fn pads_tables(&self) -> bool {
        false
    }

    /// Whether it has a place for a chat template.
    fn has_chat_template(&self) -> bool {
        true
    }

    /// Whether one of [`ReadModel::unused`] has a place in it; `keep_types`: tensors keep their types.
    fn keeps_key(&self, _key: &str, _keep_types: bool) -> bool {
        false
    }

    /// Why it has no place for a tokenizer, and is written without.
    fn tokenizer_error(&self, _tokenizer: &Tokenizer) -> Option<TokenizerError> {
        None
    }

    /// What its own program makes of a tokenizer otherwise than limpid does.
    fn tokenizer_differences(&self, _tokenizer: &Tokenizer) -> Vec<&'static str> {
        vec![]
    }
}

/// A file or folder to be opened.
pub(crate) struct Place<'a> {
    pub(crate) path: &'a Path,
    pub(crate) access: Access,
    /// The text of a folder's config.json; nothing for a file.
    pub(crate) config: Option<String>,
    /// The first bytes of a file.
    pub(crate) first: Vec<u8>,
}

impl<'a> Place<'a> {
    pub(crate) fn open(path: &'a Path, access: Access) -> Result<Place<'a>> {
        let about = at(path, fs::metadata(path))?;
        let mut place = Place { path, access, config: None, first: vec![] };
        if about.is_dir() {
            let config = path.join("config.json");
            if !config.exists() {
                return Err(CheckpointError::NotAModel { path: path.into(), missing: "config.json" });
            }
            place.config = Some(at(&config, files::read_text(&config, LARGEST_JSON))?);
        } else if about.is_file() {
            let file = at(path, files::open_regular(path))?;
            at(path, file.take(16).read_to_end(&mut place.first))?;
            if safetensors_file::looks_like_pickle(&place.first) {
                return Err(safetensors_file::pickle(path));
            }
        } else {
            return refuse(path, "it is a pipe or a device: a model is a folder or a file");
        }
        Ok(place)
    }

    /// Whether it is a file whose name ends so.
    pub(crate) fn ends_in(&self, ending: &str) -> bool {
        self.config.is_none() && self.path.extension().is_some_and(|end| end == ending)
    }

    /// The weights of a folder: one file, several with an index, or a pickle, which is refused. Files of weights that
    /// the index does not name are not read.
    pub(crate) fn weights(&self) -> Result<Store> {
        let (one, index) = (self.path.join("model.safetensors"), self.path.join("model.safetensors.index.json"));
        if index.exists() {
            return safetensors_file::open_sharded_as(self.path, &index, self.access);
        }
        if one.exists() {
            return safetensors_file::open_as(&one, self.access);
        }
        for name in ["pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "pytorch_model.pt", "ckpt.pt"] {
            if self.path.join(name).exists() {
                return Err(safetensors_file::pickle(&self.path.join(name)));
            }
        }
        Err(CheckpointError::NotAModel { path: self.path.into(), missing: "model.safetensors" })
    }
}

/// A model as a format reads it. The weights' values are still in their files.
pub(crate) struct ReadModel {
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) names: Names,
    pub(crate) dialect: Arc<dyn Dialect>,
    pub(crate) tokenizer: Option<Tokenizer>,
    pub(crate) chat_template: Option<String>,
    /// Tensors on which no result depends.
    pub(crate) left_out: Vec<String>,
    pub(crate) carried: Carried,
    /// The tokens that end a text or a turn.
    pub(crate) ends: Vec<u32>,
    pub(crate) metadata: Metadata,
    /// Keys of `metadata` that change no number.
    pub(crate) unused: Vec<String>,
}

impl ReadModel {
    /// A configuration and its weights, with nothing beside them.
    pub(crate) fn bare(config: Config, store: Store, names: Names, dialect: impl Dialect + 'static) -> ReadModel {
        ReadModel {
            config,
            store,
            names,
            dialect: Arc::new(dialect),
            tokenizer: None,
            chat_template: None,
            left_out: vec![],
            carried: Carried::default(),
            ends: vec![],
            metadata: Metadata::default(),
            unused: vec![],
        }
    }

    /// The same with what stands beside the weights in a folder; `origin`: its config.json, if that is HuggingFace's.
    pub(crate) fn in_folder(self, place: &Place, origin: Option<&str>) -> Result<ReadModel> {
        let carried = Carried::open(place.path, origin)?;
        let (tokenizer, chat_template) = (Tokenizer::open(place.path)?, chat_template(place.path)?);
        Ok(ReadModel { tokenizer, chat_template, carried, ends: ends(place.path)?, ..self })
    }
}
