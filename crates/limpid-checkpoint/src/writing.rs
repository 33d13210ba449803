//! A model in each of the formats, file by file: its tensors, its configuration, its tokenizer, and what goes along. [`super::save`] finds
//! room for it and puts it in place.

use super::dialect::huggingface;
use super::dialect::{self, Link, TensorLayout, regained};
use super::store::{Dtype, MakeValues, OutputTensor, refuse};
use super::{
    CHAT_TEMPLATE, Carried, CheckpointError, Format, GENERATION, LARGEST_JSON, ModelData, Result, StoredRows, at,
    chat_template, ends_of, format_pt, generation_config, gguf, llmc, replace, safetensors_file, write_text,
};
use limpid_core::config::Config;
use limpid_core::model::{Model, Param, ParamRole};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// The type that a tensor of this name and shape gets, where its rows have the type that is told last.
type Chosen<'a> = &'a dyn Fn(&str, &[usize], Option<&Dtype>) -> Dtype;

/// A model on its way to a place, in one of the formats.
struct Writing<'a, 'd> {
    path: &'a Path,
    dtype: &'a Dtype,
    source: &'a ModelData<'d>,
    /// The model that is given: a format may need another configuration for it.
    given: Model,
    /// Whether rows may be taken over as they are stored.
    takes_rows: bool,
}

/// Writes what [`super::save`] has found room for.
pub(super) fn write(path: &Path, format: Format, dtype: &Dtype, source: &ModelData) -> Result<()> {
    if matches!(dtype, Dtype::Blocks(_)) && format != Format::Gguf {
        return refuse(path, format!("only GGUF has {dtype}: choose F32, F16 or BF16"));
    }
    let given = outline(path, source.config)?;
    let writing = Writing { path, dtype, source, given, takes_rows: format == Format::Gguf };
    match format {
        Format::Limpid => writing.limpid(),
        Format::HuggingFace => writing.huggingface(),
        Format::Gguf => writing.gguf(),
        Format::Llmc => writing.llmc(),
    }
}

/// The model of a configuration, without memory.
fn outline(path: &Path, config: &Config) -> Result<Model> {
    dialect::outline(config).map_err(|source| CheckpointError::Config { path: path.into(), source })
}

impl<'d> Writing<'_, 'd> {
    /// The values of a parameter of a model of `config`. One that the format has and the given model has not changes nothing.
    fn values(&self, param: &Param, config: &Config) -> Result<Vec<f32>> {
        let (values, from) = match self.given.param(&param.name) {
            Some(param) => (self.source.values.get(param)?, self.source.config),
            None => (dialect::neutral(param, self.source.config), &Config::default()),
        };
        Ok(regained(param, values.into(), from, config).into_owned())
    }

    /// The rows of a tensor as they are stored, those of all parameters that it holds.
    fn rows(&self, held: &[(Link, Param)], config: &Config) -> Option<StoredRows<'d>> {
        let (mut dtype, mut all) = (None, vec![&[] as &[u8]; held[0].0.their_rows()]);
        for (link, param) in held {
            let own = self.given.param(&param.name)?;
            let stored_otherwise = self.source.config.norm_gain_less_one != config.norm_gain_less_one;
            if param.role == ParamRole::Gain && stored_otherwise {
                return None;
            }
            let (found, rows) = (self.source.rows)(own, link.rows.clone())?;
            if link.turn == TensorLayout::Transposed && param.is_matrix()
                || *dtype.get_or_insert(found.clone()) != found
            {
                return None;
            }
            rows.into_iter().enumerate().for_each(|(i, row)| all[link.row(i)] = row);
        }
        dtype.filter(|_| all.iter().all(|row| !row.is_empty())).map(|dtype| (dtype, all))
    }

    /// The tensors of `model`, which is the given one as the format has it.
    fn tensors(
        &self,
        model: &Model,
        links: Vec<Link>,
        name: &dyn Fn(&Link) -> String,
        dtype: Chosen,
    ) -> Vec<OutputTensor<'_>> {
        let mut tensors: Vec<Vec<(Link, Param)>> = vec![];
        for link in links {
            let param = model.param(&link.param).expect("links are of the model's parameters").clone();
            match tensors.iter_mut().find(|held| held[0].0.name == link.name) {
                Some(held) => held.push((link, param)),
                None => tensors.push(vec![(link, param)]),
            }
        }
        let one = |held: Vec<(Link, Param)>| {
            let (name, shape) = (name(&held[0].0), held[0].0.shape(&held[0].1));
            let stored = if self.takes_rows { self.rows(&held, &model.config) } else { None };
            let dtype = dtype(&name, &shape, stored.as_ref().map(|(dtype, _)| dtype));
            let rows = stored.filter(|(stored, _)| *stored == dtype).map(|(_, rows)| rows);
            let config = model.config.clone();
            let make: MakeValues = Box::new(move || dialect::together(&held, &|param| self.values(param, &config)));
            OutputTensor { name, dtype, shape, values: vec![make], rows }
        };
        tensors.into_iter().map(one).collect()
    }

    /// limpid's own folder.
    fn limpid(&self) -> Result<()> {
        let Writing { path, source, .. } = *self;
        let shown = |p: &Param| {
            let values = self.values(p, source.config)?;
            Ok(match p.order {
                Some(order) => order.show(&values, values.len() / p.shape()[0]),
                None => values,
            })
        };
        let one = |p| {
            let values = vec![Box::new(move || shown(p)) as MakeValues];
            OutputTensor::new(p.name.clone(), self.dtype.clone(), p.shape(), values)
        };
        let tensors = self.given.params.iter().map(one).collect();
        safetensors_file::write_summed(&path.join("model.safetensors"), tensors, format_pt())?;
        write_text(&path.join("config.json"), &source.config.to_json())?;
        source.carried.map_or(Ok(()), |carried| carried.put_whole(path))?;
        write_ends(path, source)?;
        if let Some(tokenizer) = source.tokenizer {
            write_text(&path.join("tokenizer.json"), &tokenizer.to_json())?;
        }
        write_template(path, source)
    }

    /// A folder of HuggingFace's transformers.
    fn huggingface(&self) -> Result<()> {
        let Writing { path, dtype, source, .. } = *self;
        let origin = source.carried.and_then(Carried::origin);
        let (family, config, keys) = huggingface::express(source.config, origin.map(|(text, _)| text))?;
        let model = outline(path, &config)?;
        let full = |link: &Link| family.full(&link.name, &config);
        let tensors = self.tensors(&model, family.links(&model), &full, &|_, _, _| dtype.clone());
        safetensors_file::write_sharded(path, tensors, format_pt(), source.shard_bytes)?;
        // what the model came with is right for its own tokenizer
        let tokenizer = Some(source.tokenizer).filter(|_| !keys.came || !origin.is_some_and(|(_, own)| own));
        let text = huggingface::write(family, &config, keys, tokenizer, &ends(source), dtype);
        write_text(&path.join("config.json"), &text)?;
        if let Some(tokenizer) = source.tokenizer {
            tokenizer.export(path, config.context_length)?;
        }
        source.carried.map_or(Ok(()), |carried| carried.put(path))?;
        write_ends(path, source)?;
        write_template(path, source)
    }

    /// llama.cpp's GGUF.
    fn gguf(&self) -> Result<()> {
        let Writing { path, dtype, source, .. } = *self;
        let came_in = source.metadata.and_then(|m| m.str("general.architecture").ok());
        let (kind, own, config) = dialect::gguf::express(source.config, source.tokenizer, came_in)?;
        let metadata = self.gguf_metadata(kind, own)?;
        let model = outline(path, &config)?;
        let stored_as = |name: &str, shape: &[usize], stored: Option<&Dtype>| {
            let kept = stored.filter(|_| source.keep_types && !dialect::gguf::is_f32(name, shape)).cloned();
            kept.unwrap_or_else(|| dialect::gguf::stored_as(name, shape, dtype))
        };
        let mut tensors = self.tensors(&model, kind.written(&model), &|link| link.name.clone(), &stored_as);
        if config.rotary_scaling.factor != 1.0 && config.rotary_scaling.context > 0 {
            let turned = config.rotary_dim.unwrap_or(config.d_head());
            let factors = dialect::gguf::factors(config.rotary_scaling, config.rotary_base, turned);
            let (name, shape) = (dialect::gguf::ROPE_FREQS.to_string(), vec![factors.len()]);
            let values: MakeValues = Box::new(move || Ok(factors.clone()));
            tensors.push(OutputTensor::new(name, Dtype::F32, shape, vec![values]));
        }
        gguf::write(path, &metadata, tensors)
    }

    /// What the file says: what the model came with, and over it `own`, what the configuration and the tokenizer say.
    fn gguf_metadata(
        &self,
        kind: &'static dialect::gguf::Architecture,
        mut own: gguf::Metadata,
    ) -> Result<gguf::Metadata> {
        let source = self.source;
        if let Some(tokenizer) = source.tokenizer {
            let roles = tokenizer.roles();
            let named = |role: &str| tokenizer.special(&source.carried?.in_role(role)?);
            let known = |role: &str| roles.iter().find(|(own, _)| *own == role).map(|(_, id)| *id);
            dialect::gguf_vocabulary::put_roles(&mut own, &|role| named(role).or_else(|| known(role)));
        }
        let mut metadata = match source.metadata {
            Some(came) => dialect::gguf::taken_over(came, kind, source.keep_types),
            None => {
                let mut named = gguf::Metadata::default();
                named.set("general.name", "limpid".to_string());
                named
            }
        };
        if metadata.get("general.file_type").is_none() && !source.keep_types {
            metadata.set("general.file_type", gguf::GgufValue::U32(dialect::gguf::file_type(self.dtype)));
        }
        // a tokenizer that came in such a file stays as it was there, scores and names too
        let came = metadata.get("tokenizer.ggml.tokens").is_some() && source.tokenizer.is_some();
        let anew = own.iter().filter(|(key, _)| !(came && key.starts_with("tokenizer.ggml.")));
        anew.for_each(|(key, value)| metadata.set(key, value.clone()));
        if let Some(template) = source.chat_template {
            metadata.set(dialect::gguf::CHAT_TEMPLATE, template.to_string());
        }
        if !came || source.carried.is_some_and(|carried| !carried.ends().is_empty()) {
            put_ends(&mut metadata, &ends(source));
        }
        if let Some(pooling) = source.carried.map_or(Ok(None), Carried::pooling)? {
            dialect::gguf::put_pooling(&mut metadata, kind, &pooling);
        }
        Ok(metadata)
    }

    /// llm.c's `.bin`, and its tokenizer beside it.
    fn llmc(&self) -> Result<()> {
        let Writing { path, source, .. } = *self;
        let (header, config) = dialect::llmc::express(source.config, self.dtype.clone())?;
        let model = outline(path, &config)?;
        // under the name that llm.c looks for; it would be taken for another model's there, too
        let beside = path.with_file_name("gpt2_tokenizer.bin");
        let tokenizer = source.tokenizer.and_then(|t| t.to_llmc().ok());
        let there =
            beside.exists().then(|| at(&beside, limpid_base::files::read_small(&beside, LARGEST_JSON))).transpose()?;
        if let (Some(bytes), Some(there)) = (&tokenizer, &there)
            && bytes != there
        {
            return refuse(&beside, "it is of another model, and would be taken for this one's: give another folder");
        }
        let links = dialect::llmc::links(&model);
        let rows = header.padded_vocab_size * header.d_model;
        llmc::write(path, &header, &|name| {
            let link = links.iter().find(|l| l.name == name).expect("llm.c's tensors all have links");
            let param = model.param(&link.param).expect("as above");
            let mut theirs = link.theirs(param, &self.values(param, &config)?);
            if link.padded {
                theirs.resize(rows, 0.0);
            }
            Ok(theirs)
        })?;
        if let Some(bytes) = tokenizer.filter(|_| there.is_none()) {
            replace(&beside, |path| File::create(path)?.write_all(&bytes))?;
        }
        Ok(())
    }
}

/// The tokens that end a text or a turn, the end of a text first.
fn ends(source: &ModelData) -> Vec<u32> {
    match source.carried.map(Carried::ends) {
        Some(said) if !said.is_empty() => said.to_vec(),
        _ => source.tokenizer.map(|tokenizer| ends_of(tokenizer, source.chat_template)).unwrap_or_default(),
    }
}

/// Writes the tokens that end a text or a turn and that nothing in the file names yet, as far as there are places for them: llama.cpp also
/// knows the usual ones by their texts.
fn put_ends(m: &mut gguf::Metadata, ends: &[u32]) {
    const PLACES: [&str; 3] = ["eos", "eot", "eom"];
    if m.get("tokenizer.ggml.tokens").is_none() {
        return;
    }
    let keys = PLACES.map(|place| format!("tokenizer.ggml.{place}_token_id"));
    for end in ends {
        let named = |key: &String| m.u64(key).is_ok_and(|id| id == u64::from(*end));
        if !keys.iter().any(named)
            && let Some(free) = keys.iter().find(|key| m.get(key).is_none())
        {
            m.set(free.clone(), gguf::GgufValue::U32(*end));
        }
    }
}

/// Writes to the folder which tokens end a text or a turn, if the tokenizer or the template knows and no carried file says so.
fn write_ends(folder: &Path, source: &ModelData) -> Result<()> {
    let text = source.tokenizer.and_then(|tokenizer| generation_config(tokenizer, source.chat_template));
    match text.filter(|_| !folder.join(GENERATION).exists()) {
        Some(text) => write_text(&folder.join(GENERATION), &text),
        None => Ok(()),
    }
}

/// Writes the chat template to the folder, unless a carried file already has it.
fn write_template(folder: &Path, source: &ModelData) -> Result<()> {
    match source.chat_template {
        Some(template) if chat_template(folder)?.as_deref() != Some(template) => {
            write_text(&folder.join(CHAT_TEMPLATE), template)
        }
        _ => Ok(()),
    }
}
