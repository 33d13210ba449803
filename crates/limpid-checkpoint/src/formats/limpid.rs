//! limpid's own folder: `config.json`, `model.safetensors` and `tokenizer.json`, with parameters under limpid's names.

use super::format::{ModelFormat, Place, ReadModel};
use super::links::{Dialect, Link, TensorLayout, canonical_names};
use super::writing::Writing;
use crate::error::{CheckpointError, Result, refuse};
use crate::files::{at, write_text};
use crate::safetensors_file;
use limpid_core::config::{Config, ConfigError};
use limpid_core::model::{Model, Param};
use serde_json::Value;
use std::path::Path;

/// See [`super::Format::Limpid`].
pub(crate) struct LimpidFolder;

/// limpid's own names.
pub(crate) struct OwnNames;

impl Dialect for OwnNames {
    fn links(&self, model: &Model) -> Vec<Link> {
        own_links("", model.params.iter().filter(|param| !param.is_adapter()))
    }
}

/// Our own names of some parameters, with a prefix for the tensors of another memory.
pub(crate) fn own_links<'a>(prefix: &str, params: impl Iterator<Item = &'a Param>) -> Vec<Link> {
    let layout = |param: &Param| param.order.map_or(TensorLayout::Same, TensorLayout::Features);
    params.map(|param| Link::whole(format!("{prefix}{}", param.name), param, layout(param))).collect()
}

impl ModelFormat for LimpidFolder {
    /// A folder, or the weights alone in a folder below it.
    fn detect(&self, place: &Place) -> bool {
        let Some(config) = &place.config else { return place.ends_in("safetensors") };
        let config: Value = serde_json::from_str(config).unwrap_or_default();
        config["model_type"] == "limpid" || config["model_type"].is_null() && !config["d_model"].is_null()
    }

    fn read(&self, place: &Place) -> Result<ReadModel> {
        let Some(text) = &place.config else { return self.read_other_weights(place) };
        let checked = |config: Config| config.check().map(|()| config);
        let bad_config = |source: ConfigError| CheckpointError::Config { path: place.path.join("config.json"), source };
        let config = Config::from_json(text).and_then(checked).map_err(bad_config)?;
        let store = place.weights()?;
        let names = canonical_names(&store, |name| Some(name.into()))?;
        ReadModel::bare(config, store, names, OwnNames).in_folder(place, None)
    }

    fn write(&self, writing: &Writing) -> Result<()> {
        let (path, source) = (writing.path, writing.source);
        let tensors = writing.tensors(&writing.given, OwnNames.links(&writing.given), &|link| link.name.clone());
        safetensors_file::write_summed(&path.join("model.safetensors"), tensors, safetensors_file::format_pt())?;
        write_text(&path.join("config.json"), &source.config.to_json())?;
        source.carried.map_or(Ok(()), |carried| carried.put_whole(path))?;
        if let Some(tokenizer) = source.tokenizer {
            write_text(&path.join("tokenizer.json"), &tokenizer.to_json())?;
        }
        writing.write_ends()?;
        writing.write_template()
    }
}

impl LimpidFolder {
    /// Other weights of a folder, which lie in a folder below it: those that a run kept, with moments as
    /// `moment1/NAME`.
    fn read_other_weights(&self, place: &Place) -> Result<ReadModel> {
        let whole = at(place.path, place.path.canonicalize())?;
        let above = whole.parent().and_then(Path::parent).filter(|above| above.join("config.json").is_file());
        let above = above.map(|above| Place::open(above, place.access)).transpose()?;
        let Some(above) = above.filter(|above| self.detect(above)) else {
            let what = "it is the weights alone: give the folder that it is in, with config.json beside it";
            return refuse(place.path, what);
        };
        let model = self.read(&above)?;
        let store = safetensors_file::open_as(place.path, place.access)?;
        let names = canonical_names(&store, |name| (!name.contains('/')).then(|| name.into()))?;
        Ok(ReadModel { store, names, ..model })
    }
}
