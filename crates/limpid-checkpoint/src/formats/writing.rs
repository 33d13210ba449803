//! What is written: a model with what goes along ([`ModelData`]), and its tensors as a format has them ([`Writing`]).

use super::express::{self, regained};
use super::links::{Link, StoredRows, TensorLayout, together};
use crate::carried::{CHAT_TEMPLATE, Carried, EOS, GENERATION, chat_template};
use crate::error::Result;
use crate::files::write_text;
use crate::gguf::Metadata;
use crate::store::{Dtype, MakeValues, OutputTensor};
use limpid_core::config::Config;
use limpid_core::model::{Model, Param, ParamRole};
use limpid_tokenizer::Tokenizer;
use std::ops::Range;
use std::path::Path;

/// A model to be written: what it is, and the values of its parameters by our names.
pub struct ModelData<'a> {
    /// Which transformer.
    pub config: &'a Config,
    /// Its tokenizer.
    pub tokenizer: Option<&'a Tokenizer>,
    /// [`Checkpoint::chat_template`](crate::Checkpoint::chat_template)
    pub chat_template: Option<&'a str>,
    /// [`Checkpoint::carried`](crate::Checkpoint::carried); nothing for a model that is not from a folder.
    pub carried: Option<&'a Carried>,
    /// The values of a parameter of `config`'s model.
    pub values: ModelValues<'a>,
    /// Some rows of it as they are stored, if they are of one type: GGUF takes over, bit for bit, what has the type
    /// that it gets there.
    pub rows: &'a dyn Fn(&Param, Range<usize>) -> Option<StoredRows<'a>>,
    /// Whether every matrix of a GGUF keeps the type that it has, where that can be: mixtures stay mixtures.
    pub keep_types: bool,
    /// [`Checkpoint::whole_metadata`](crate::Checkpoint::whole_metadata), of which GGUF takes over what it does not say
    /// itself, and the tokenizer if it is this one's.
    pub metadata: Option<&'a Metadata>,
    /// Bytes from which on a folder of HuggingFace's has its weights in several files; [`SHARD_BYTES`] as a rule.
    pub shard_bytes: u64,
}

/// The values of a model's parameters: in memory, or from files that may have been changed or damaged.
#[derive(Clone, Copy)]
pub enum ModelValues<'a> {
    /// In memory.
    Held(&'a dyn Fn(&Param) -> Vec<f32>),
    /// From files.
    Read(&'a dyn Fn(&Param) -> Result<Vec<f32>>),
}

impl ModelValues<'_> {
    fn get(self, param: &Param) -> Result<Vec<f32>> {
        match self {
            ModelValues::Held(values) => Ok(values(param)),
            ModelValues::Read(values) => values(param),
        }
    }
}

/// The size from which on transformers parts weights into files.
pub const SHARD_BYTES: u64 = 5_000_000_000;

impl<'a> ModelData<'a> {
    /// A model alone, whose values are in memory.
    pub fn new(config: &'a Config, values: &'a dyn Fn(&Param) -> Vec<f32>) -> ModelData<'a> {
        ModelData::of(config, ModelValues::Held(values))
    }

    /// A model alone.
    pub fn of(config: &'a Config, values: ModelValues<'a>) -> ModelData<'a> {
        ModelData {
            config,
            tokenizer: None,
            chat_template: None,
            carried: None,
            values,
            rows: &|_, _| None,
            keep_types: false,
            metadata: None,
            shard_bytes: SHARD_BYTES,
        }
    }
}

/// The type of a tensor of this name and shape, whose rows are stored as the last.
pub(crate) type ChooseType<'a> = &'a dyn Fn(&str, &[usize], Option<&Dtype>) -> Dtype;

/// A model on its way to a place, in one of the formats.
pub(crate) struct Writing<'a, 'd> {
    pub(crate) path: &'a Path,
    pub(crate) dtype: &'a Dtype,
    pub(crate) source: &'a ModelData<'d>,
    /// The model that is given: a format may need another configuration for it.
    pub(crate) given: Model,
    /// Whether rows may be taken over as they are stored.
    pub(crate) takes_rows: bool,
}

impl<'d> Writing<'_, 'd> {
    /// The values of a parameter of a model of `config`. One that the format has and the given model has not changes
    /// nothing.
    pub(crate) fn values(&self, param: &Param, config: &Config) -> Result<Vec<f32>> {
        let (values, from) = match self.given.param(&param.name) {
            Some(param) => (self.source.values.get(param)?, self.source.config),
            None => (express::neutral(param, self.source.config), &Config::default()),
        };
        Ok(regained(param, values.into(), from, config).into_owned())
    }

    /// The rows of a tensor as they are stored, those of all parameters that it holds.
    fn rows(&self, held: &[(Link, Param)], config: &Config) -> Option<StoredRows<'d>> {
        let (mut dtype, mut all) = (None, vec![&[] as &[u8]; held[0].0.their_rows()]);
        let gains_differ = self.source.config.norm_gain_less_one != config.norm_gain_less_one;
        for (link, param) in held {
            let given = self.given.param(&param.name)?;
            if param.role == ParamRole::Gain && gains_differ {
                return None;
            }
            let (found, rows) = (self.source.rows)(given, link.rows.clone())?;
            let is_turned = link.turn == TensorLayout::Transposed && param.is_matrix();
            if is_turned || *dtype.get_or_insert(found.clone()) != found {
                return None;
            }
            rows.into_iter().enumerate().for_each(|(i, row)| all[link.row(i)] = row);
        }
        dtype.filter(|_| all.iter().all(|row| !row.is_empty())).map(|dtype| (dtype, all))
    }

    /// The tensors of `model`, which is the given one as the format has it, all of the type that is written.
    pub(crate) fn tensors(
        &self,
        model: &Model,
        links: Vec<Link>,
        name: &dyn Fn(&Link) -> String,
    ) -> Vec<OutputTensor<'_>> {
        self.tensors_as(model, links, name, &|_, _, _| self.dtype.clone())
    }

    /// The same, each of a type of its own.
    pub(crate) fn tensors_as(
        &self,
        model: &Model,
        links: Vec<Link>,
        name: &dyn Fn(&Link) -> String,
        choose: ChooseType,
    ) -> Vec<OutputTensor<'_>> {
        let mut tensors: Vec<Vec<(Link, Param)>> = vec![];
        for link in links {
            let param = model.param(&link.param).expect("links are of the model's parameters").clone();
            match tensors.iter_mut().find(|held| held[0].0.name == link.name) {
                Some(held) => held.push((link, param)),
                None => tensors.push(vec![(link, param)]),
            }
        }
        let output = |held: Vec<(Link, Param)>| {
            let (name, shape) = (name(&held[0].0), held[0].0.shape(&held[0].1));
            let stored = if self.takes_rows { self.rows(&held, &model.config) } else { None };
            let dtype = choose(&name, &shape, stored.as_ref().map(|(dtype, _)| dtype));
            let rows = stored.filter(|(stored, _)| *stored == dtype).map(|(_, rows)| rows);
            let config = model.config.clone();
            let make: MakeValues = Box::new(move || together(&held, &|param| self.values(param, &config)));
            OutputTensor { name, dtype, shape, values: vec![make], rows }
        };
        tensors.into_iter().map(output).collect()
    }

    /// The tokens that end a text or a turn, the end of a text first.
    pub(crate) fn ends(&self) -> Vec<u32> {
        let source = self.source;
        match source.carried.map(Carried::ends) {
            Some(said) if !said.is_empty() => said.to_vec(),
            _ => source.tokenizer.map(|tokenizer| ends_of(tokenizer, source.chat_template)).unwrap_or_default(),
        }
    }

    /// Writes to the folder which tokens end a text or a turn, if the tokenizer or the template knows and no carried
    /// file says so.
    pub(crate) fn write_ends(&self) -> Result<()> {
        let path = self.path.join(GENERATION);
        let text = self.source.tokenizer.and_then(|tokenizer| generation_config(tokenizer, self.source.chat_template));
        text.filter(|_| !path.exists()).map_or(Ok(()), |text| write_text(&path, &text))
    }

    /// Writes the chat template to the folder, unless a carried file already has it.
    pub(crate) fn write_template(&self) -> Result<()> {
        match self.source.chat_template {
            Some(template) if chat_template(self.path)?.as_deref() != Some(template) => {
                write_text(&self.path.join(CHAT_TEMPLATE), template)
            }
            _ => Ok(()),
        }
    }
}

/// The generation_config.json of a model with this tokenizer, if more than one token ends its texts and turns.
pub fn generation_config(tokenizer: &Tokenizer, chat_template: Option<&str>) -> Option<String> {
    let all = ends_of(tokenizer, chat_template);
    let named = !tokenizer.more_ends().is_empty();
    (named || all.len() > 1).then(|| format!("{:#}\n", serde_json::json!({ EOS: all })))
}

/// The tokens that end a text or a turn: the tokenizer's own, the end of a text first, and the end of a turn that the
/// template writes.
fn ends_of(tokenizer: &Tokenizer, chat_template: Option<&str>) -> Vec<u32> {
    let writes =
        |id: &u32| chat_template.is_some_and(|text| tokenizer.decode(&[*id]).is_ok_and(|end| text.contains(&end)));
    let turn = tokenizer.end_of_turn().filter(writes);
    let mut all: Vec<u32> = vec![];
    for id in tokenizer.end_of_text().into_iter().chain(tokenizer.more_ends()).chain(turn) {
        if !all.contains(&id) {
            all.push(id);
        }
    }
    all
}
