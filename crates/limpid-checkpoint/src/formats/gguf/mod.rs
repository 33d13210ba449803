//! llama.cpp's GGUF: a model in one file, with its tokenizer. `architectures` is the table of what llama.cpp calls
//! kinds of models, `keys` their keys, `vocabulary` the tokenizer; the container is [`crate::gguf`].
//!
//! Norms, biases, position and segment tables are F32 always; blocks are for matrices whose rows are whole blocks:
//! others are Q8_0 then, or F16.

mod architectures;
mod keys;
mod vocabulary;

use super::express::outline;
use super::format::{ModelFormat, Place, ReadModel};
use super::links::{Dialect, Link, canonical_names};
use super::writing::Writing;
use crate::carried::{Carried, SentenceRecipe};
use crate::error::{PEFT_ALONE, Result, bad, refuse};
use crate::gguf::{self, GgufValue, Metadata};
use crate::quantize;
use crate::store::{Dtype, MakeValues, OutputTensor, Store};
use architectures::{Architecture, GgufModel, GgufNames};
use keys::{CHAT_TEMPLATE, POOLING, ROPE_FREQS};
use limpid_core::numeric::blocks::Quant;
use limpid_tokenizer::Tokenizer;
use std::path::Path;

/// What sentence-transformers calls the values of [`POOLING`].
const POOLINGS: &[(u32, &str)] = &[(1, "mean"), (2, "cls"), (3, "lasttoken")];

/// See [`super::Format::Gguf`].
pub(crate) struct GgufFile;

impl ModelFormat for GgufFile {
    fn file(&self) -> Option<(&'static str, &'static str)> {
        Some(("gguf", ".gguf"))
    }

    fn detect(&self, place: &Place) -> bool {
        place.first.starts_with(b"GGUF")
    }

    fn read(&self, place: &Place) -> Result<ReadModel> {
        let (metadata, store) = gguf::open_as(place.path, place.access)?;
        check_is_model(&metadata, &store)?;
        let GgufModel { names: dialect, config, unused } = architectures::read(&metadata, &store)?;
        let names = canonical_names(&store, |name| dialect.canonical(name, &config))?;
        let tokenizer = vocabulary::read_tokenizer(&metadata, place.path)?;
        let chat_template = metadata.maybe(CHAT_TEMPLATE, Metadata::str)?.map(String::from);
        let metadata = metadata.without(vocabulary::is_tokens);
        Ok(ReadModel { tokenizer, chat_template, metadata, unused, ..ReadModel::bare(config, store, names, dialect) })
    }

    fn write(&self, writing: &Writing) -> Result<()> {
        let Writing { path, dtype, source, .. } = *writing;
        let came_in = source.metadata.and_then(|m| m.str("general.architecture").ok());
        let (kind, said, config) = architectures::express(source.config, source.tokenizer, came_in)?;
        let metadata = metadata_of(writing, kind, said)?;
        let model = outline(path, &config)?;
        let stored_as = |name: &str, shape: &[usize], stored: Option<&Dtype>| {
            let same = stored.filter(|_| source.keep_types && !is_f32(name, shape)).cloned();
            same.unwrap_or_else(|| stored_as(name, shape, dtype))
        };
        let links = GgufNames::written(kind, &model);
        let mut tensors = writing.tensors_as(&model, links, &|link: &Link| link.name.clone(), &stored_as);
        if config.rotary_scaling.factor != 1.0 && config.rotary_scaling.context > 0 {
            let turned = config.rotary_dim.unwrap_or(config.d_head());
            let factors = keys::factors(config.rotary_scaling, config.rotary_base, turned);
            let shape = vec![factors.len()];
            let values: MakeValues = Box::new(move || Ok(factors.clone()));
            tensors.push(OutputTensor::new(ROPE_FREQS.into(), Dtype::F32, shape, vec![values]));
        }
        gguf::write(path, &metadata, tensors)
    }

    fn mixes_types(&self) -> bool {
        true
    }

    fn storable(&self, dtype: Dtype) -> Dtype {
        let is_read_only = matches!(dtype, Dtype::Blocks(quant) if !quantize::WRITTEN.contains(&quant));
        if is_read_only { Dtype::F32 } else { dtype }
    }

    fn metadata(&self, path: &Path) -> Result<Option<Metadata>> {
        gguf::open(path).map(|(metadata, _)| Some(metadata))
    }

    /// llama.cpp's vectors have length 1.
    fn sentence_recipe(&self, path: &Path, m: &Metadata) -> Result<Option<SentenceRecipe>> {
        let key = format!("{}.{POOLING}", m.str("general.architecture").unwrap_or_default());
        let Some(stated) = m.maybe(&key, Metadata::u64)?.filter(|stated| *stated != 0) else { return Ok(None) };
        let Some((_, name)) = POOLINGS.iter().find(|(n, _)| u64::from(*n) == stated) else {
            let what = format!(
                "`{key}` is {stated}: limpid has 1 (mean), 2 (cls) and 3 (last); ask for one of these by name to pool \
                 that way"
            );
            return refuse(path, what);
        };
        let (pooling, prompt) = ((*name).into(), String::new());
        Ok(Some(SentenceRecipe { pooling, normalized: true, max_tokens: None, lowercase: false, prompt }))
    }

    fn keeps_key(&self, key: &str, keep_types: bool) -> bool {
        keep_types || !key.starts_with("quantize.")
    }

    fn tokenizer_differences(&self, tokenizer: &Tokenizer) -> Vec<&'static str> {
        let table = tokenizer.table().ok();
        let (nfc, blank_once) = table.map_or((false, false), |table| (table.nfc, table.blank_once));
        let endless = tokenizer.end_of_text().is_none() && tokenizer.name() != "wordpiece";
        let differences = [
            (
                nfc,
                "llama.cpp does not normalise texts to NFC, as this tokenizer does: texts that are not NFC get other \
                 ids there",
            ),
            (
                blank_once,
                "llama.cpp puts a blank before every text and after every special token, and this tokenizer only \
                 before a text that begins with none: other texts have other ids there",
            ),
            (
                endless,
                "it has no token that ends a text, which GGUF cannot express: llama.cpp ends a generation at token \
                 11, or at 2 of SentencePiece's",
            ),
        ];
        differences.into_iter().filter(|(differs, _)| *differs).map(|(_, what)| what).collect()
    }
}

/// The tokenizer in a GGUF file, of one without weights too.
///
/// # Errors
/// If it is not a GGUF file, has no tokenizer, or has one that is not read.
pub fn gguf_tokenizer(path: &Path) -> Result<Tokenizer> {
    let (metadata, _) = gguf::open(path)?;
    vocabulary::read_tokenizer(&metadata, path)?
        .ok_or_else(|| bad(path, "it has no tokenizer (`tokenizer.ggml.model`)"))
}

/// Checks that a file holds a model.
///
/// # Errors
/// What it holds instead.
fn check_is_model(m: &Metadata, store: &Store) -> Result<()> {
    match m.maybe("general.type", Metadata::str)? {
        None | Some("model") => {}
        Some("adapter") => {
            return refuse(store.path(), format!("it is a LoRA adapter. {}", PEFT_ALONE));
        }
        Some(other) => {
            let what = format!("it holds no model: its `general.type` is `{other}`, where a model's is `model`");
            return refuse(store.path(), what);
        }
    }
    if store.names().next().is_none() {
        let holds = if m.get("tokenizer.ggml.tokens").is_some() { "a vocabulary and no weights" } else { "no weights" };
        return refuse(store.path(), format!("it holds {holds}: it can be used as a tokenizer, but not as a model"));
    }
    Ok(())
}

/// What the file says: what the model came with, and over it `said`, what the configuration and the tokenizer say.
fn metadata_of(writing: &Writing, kind: &'static Architecture, mut said: Metadata) -> Result<Metadata> {
    let source = writing.source;
    if let Some(tokenizer) = source.tokenizer {
        let roles = tokenizer.roles();
        let named = |role: &str| tokenizer.special(&source.carried?.in_role(role)?);
        let known = |role: &str| roles.iter().find(|(name, _)| *name == role).map(|(_, id)| *id);
        vocabulary::put_roles(&mut said, &|role| named(role).or_else(|| known(role)));
    }
    let mut metadata = source.metadata.map(|came| taken_over(came, kind, source.keep_types)).unwrap_or_default();
    if source.metadata.is_none() {
        metadata.set("general.name", "limpid".to_string());
    }
    if metadata.get("general.file_type").is_none() && !source.keep_types {
        metadata.set("general.file_type", GgufValue::U32(file_type(writing.dtype)));
    }
    // a tokenizer that came in such a file stays as it was there, scores and names too
    let came = metadata.get("tokenizer.ggml.tokens").is_some() && source.tokenizer.is_some();
    let anew = said.iter().filter(|(key, _)| !(came && key.starts_with("tokenizer.ggml.")));
    anew.for_each(|(key, value)| metadata.set(key, value.clone()));
    if let Some(template) = source.chat_template {
        metadata.set(CHAT_TEMPLATE, template.to_string());
    }
    if !came || source.carried.is_some_and(|carried| !carried.ends().is_empty()) {
        put_ends(&mut metadata, &writing.ends());
    }
    if let Some(pooling) = source.carried.map_or(Ok(None), Carried::pooling)?
        && let Some((n, _)) = POOLINGS.iter().find(|(_, name)| *name == pooling)
    {
        metadata.set(format!("{}.{POOLING}", kind.name), *n);
    }
    Ok(metadata)
}

/// Writes the tokens that end a text or a turn and that nothing in the file names yet, as far as there are places for
/// them: llama.cpp also knows the usual ones by their texts.
fn put_ends(m: &mut Metadata, ends: &[u32]) {
    if m.get("tokenizer.ggml.tokens").is_none() {
        return;
    }
    let keys = ["eos", "eot", "eom"].map(|place| format!("tokenizer.ggml.{place}_token_id"));
    for end in ends {
        let named = |key: &String| m.u64(key).is_ok_and(|id| id == u64::from(*end));
        if !keys.iter().any(named)
            && let Some(free) = keys.iter().find(|key| m.get(key).is_none())
        {
            m.set(free.clone(), GgufValue::U32(*end));
        }
    }
}

/// What of a file's metadata goes into another of `kind`, beside what is said there anew. `keep_types`: tensors keep
/// their types.
fn taken_over(m: &Metadata, kind: &Architecture, keep_types: bool) -> Metadata {
    let same_kind = m.str("general.architecture").is_ok_and(|name| name == kind.name);
    m.clone().without(|key| match key.split('.').next().unwrap_or(key) {
        "split" => true,
        "general" => !keep_types && key == "general.file_type",
        "quantize" => !keep_types,
        "tokenizer" => false,
        _ => !same_kind,
    })
}

/// Whether a tensor is F32 whatever matrices are.
fn is_f32(name: &str, shape: &[usize]) -> bool {
    shape.len() < 2 || ["position_embd.weight", "token_types.weight"].contains(&name)
}

/// How a tensor of a model that is written as `dtype` is stored.
fn stored_as(name: &str, shape: &[usize], dtype: &Dtype) -> Dtype {
    let fits = |quant: &Quant| shape.last().is_some_and(|n| n.is_multiple_of(quant.sizes().0));
    match dtype {
        _ if is_f32(name, shape) => Dtype::F32,
        Dtype::Blocks(quant) => [*quant, Quant::Q8_0].into_iter().find(fits).map_or(Dtype::F16, Dtype::Blocks),
        dtype => dtype.clone(),
    }
}

/// llama.cpp's number for what most tensors are (`general.file_type`).
fn file_type(dtype: &Dtype) -> u32 {
    match dtype {
        Dtype::F16 => 1,
        Dtype::Blocks(Quant::Q4_0) => 2,
        Dtype::Blocks(Quant::Q8_0) => 7,
        Dtype::Blocks(Quant::Q4_K) => 14, // every matrix alike: "Q4_K - Small"
        Dtype::Bf16 => 32,
        _ => 0,
    }
}
