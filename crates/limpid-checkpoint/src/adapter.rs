//! LoRA adapters in files, as PEFT stores them: `adapter_config.json` describes the adapter, and
//! `adapter_model.safetensors` holds two matrices for each module, under the names that the base model has in
//! transformers (ours, if transformers has no such model). Some of our products are several modules there, such as
//! Llama's queries, keys and values: the file then repeats A for each module and splits B among them. Some modules are
//! several products here, such as Phi-3's `gate_up_proj`: the file then stacks their As, and B is block diagonal, so
//! the module's rank and alpha are as many times the adapter's.
//!
//! An opened adapter is a layer over a [`Checkpoint`](crate::Checkpoint): its weights are w + alpha / r B A, summed in
//! f64 and rounded once. A run's folder also has `base.json`, which says which model the adapter was trained on and
//! whose names it has.

use crate::error::{ADAPTER_WEIGHTS, CheckpointError, PEFT_ALONE, Result, bad, refuse};
use crate::files::read_json;
use crate::formats::huggingface::{self, Family};
use crate::formats::limpid::OwnNames;
use crate::formats::links::{Dialect, Link, TensorLayout, together};
use crate::formats::outline;
use crate::gguf;
use crate::safetensors_file;
use crate::store::{Access, Dtype, MakeValues, OutputTensor, Store};
use limpid_core::backend::Backend;
use limpid_core::model::{Lora, Model, Param};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

pub(crate) const CONFIG: &str = "adapter_config.json";
const PREFIX: &str = "base_model.model.";

/// The model that an adapter was made for: `base.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// Where it was.
    pub path: PathBuf,
    /// [`Checkpoint::fingerprint`](crate::Checkpoint::fingerprint)
    pub fingerprint: String,
    /// [`Checkpoint::weights_sum`](crate::Checkpoint::weights_sum); older adapters have none.
    #[serde(default)]
    pub weights: Option<[String; 2]>,
    /// How its matrices are stored. Where they are stored otherwise now, their values are others, but few have another
    /// sign.
    #[serde(default)]
    pub stored: String,
    /// Whose names the adapter has: those of a `model_type` of HuggingFace's, or `limpid`'s. Older adapters do not say.
    #[serde(default)]
    pub names: Option<String>,
}

impl Base {
    /// Whose names the adapter has, which was trained on `model`.
    fn dialect(&self, model: &Model) -> Arc<dyn Dialect> {
        match self.names.as_deref() {
            None => earlier_dialect(model),
            Some(kind) => names_of(huggingface::named(kind)),
        }
    }
}

/// What `base.json` calls limpid's own names.
pub(crate) const OWN_NAMES: &str = "limpid";

/// A family's names, or ours where there is none.
pub(crate) fn names_of(family: Option<&'static Family>) -> Arc<dyn Dialect> {
    match family {
        Some(family) => Arc::new(family),
        None => Arc::new(OwnNames),
    }
}

/// An adapter in its files, fitted to a model.
pub struct Adapter {
    /// Its folder.
    pub path: PathBuf,
    /// Rank, scale, and the products it is for by our names.
    pub lora: Lora,
    store: Store,
    modules: Vec<AdaptedModule>,
}

/// What it adds to a module of theirs: to rows of one product of ours, or of several.
struct AdaptedModule {
    links: Vec<Link>,
    /// Names of both tensors.
    names: [String; 2],
    rank: usize,
    scale: f64,
}

/// Whether a folder holds an adapter and no model.
pub fn is_one(folder: &Path) -> bool {
    is_in(folder)
        && !["model.safetensors", "model.safetensors.index.json"].map(|n| folder.join(n).exists()).contains(&true)
}

/// Whether a folder holds an adapter, whatever else it holds.
pub(crate) fn is_in(folder: &Path) -> bool {
    folder.join(CONFIG).exists()
}

/// What limpid wrote of the model that the adapter in `folder` was trained on; nothing of another program's adapter.
///
/// # Errors
/// If the file cannot be read.
pub fn base(folder: &Path) -> Result<Option<Base>> {
    let path = folder.join("base.json");
    path.exists().then(|| read_json(&path, "it cannot be read")).transpose()
}

/// Where the model is that the adapter in `folder` names as its base.
///
/// # Errors
/// If its files cannot be read, it names none, or there is no model of its own there.
pub(crate) fn base_of(folder: &Path) -> Result<PathBuf> {
    let named = match base(folder)? {
        Some(base) => Some(base.path),
        None => {
            let config = read_config(folder)?;
            let name = config.get("base_model_name_or_path").and_then(Value::as_str);
            name.filter(|name| !name.is_empty()).map(PathBuf::from)
        }
    };
    let Some(base) = named else {
        let what = "it does not say which model it is for: open that model, with this as its adapter";
        return refuse(&folder.join(CONFIG), what);
    };
    let base = if base.exists() { base } else { folder.join(base) };
    if !base.exists() {
        return Err(CheckpointError::NoBase { path: folder.into(), base });
    }
    if is_one(&base) {
        return refuse(folder, format!("it is an adapter of {}, which is an adapter itself", base.display()));
    }
    Ok(base)
}

fn read_config(folder: &Path) -> Result<Map<String, Value>> {
    let path = folder.join(CONFIG);
    if folder.is_file() {
        let kind = if gguf::is_gguf(folder) { "a GGUF file" } else { "a file" };
        return refuse(folder, format!("it is {kind}. {PEFT_ALONE}"));
    }
    if !path.exists() {
        return Err(CheckpointError::NotAModel { path: folder.into(), missing: CONFIG });
    }
    let config: Map<String, Value> = read_json(&path, "it is not a JSON object")?;
    for (keys, may, said) in TYPES {
        let wrong = |(key, value): &(&String, &Value)| keys.contains(&key.as_str()) && !value.is_null() && !may(value);
        if let Some((key, value)) = config.iter().find(wrong) {
            return refuse(&path, format!("`{key}` is {value}: it must be {said}"));
        }
    }
    Ok(config)
}

/// Keys of PEFT's LoraConfig, the values that limpid supports beside null, and those values in words.
type Typed = (&'static [&'static str], fn(&Value) -> bool, &'static str);

#[rustfmt::skip]
const TYPES: &[Typed] = &[
    (&["fan_in_fan_out", "inference_mode", "use_rslora", "use_dora", "lora_bias", "use_qalora", "ensure_weight_tying"],
        Value::is_boolean, "true or false"),
    (&["peft_type", "bias", "task_type", "base_model_name_or_path", "revision", "peft_version", "megatron_core"],
        Value::is_string, "a text"),
    (&["r", "qalora_group_size"], Value::is_u64, "a whole number above 0"),
    (&["lora_alpha", "lora_dropout"], Value::is_number, "a number"),
    (&["init_lora_weights"], |v| v.is_boolean() || v.is_string(), "true, false or a text"),
    (&["target_modules", "layers_pattern", "exclude_modules"],
        |v| v.is_string() || v.as_array().is_some_and(|all| all.iter().all(Value::is_string)),
        "a text or a list of texts"),
    (&["layers_to_transform"], |v| v.is_u64() || v.as_array().is_some_and(|all| all.iter().all(Value::is_u64)),
        "a whole number or a list of them"),
    (&["modules_to_save", "layer_replication", "target_parameters", "alora_invocation_tokens"], Value::is_array,
    "a list"),
    (&["trainable_token_indices"], |v| v.is_array() || v.is_object(), "a list or an object"),
    (&["rank_pattern", "alpha_pattern", "loftq_config", "eva_config", "corda_config", "megatron_config", "arrow_config",
        "auto_mapping", "runtime_config"], Value::is_object, "an object"),
];

/// Keys of PEFT's LoraConfig that are read here, or do not affect a trained adapter.
#[rustfmt::skip]
const IDLE: &[&str] = &[
    "peft_type", "r", "lora_alpha", "lora_dropout", "bias", "init_lora_weights", "target_modules", "task_type",
    "base_model_name_or_path", "fan_in_fan_out", "inference_mode", "revision", "auto_mapping", "peft_version",
    "layers_to_transform", "layers_pattern", "exclude_modules", "megatron_core", "qalora_group_size", "runtime_config",
    RANKS, ALPHAS,
];

/// Where PEFT keeps the ranks and alphas of modules that have others than the adapter as a whole.
const RANKS: &str = "rank_pattern";
const ALPHAS: &str = "alpha_pattern";

/// What one of PEFT's patterns says of a module: a key stands for the modules of this name, and for those whose names
/// end in it.
fn patterned<'a>(
    path: &Path,
    config: &'a Map<String, Value>,
    pattern: &str,
    module: &str,
) -> Result<Option<&'a Value>> {
    let plain = |key: &&String| key.chars().all(|c| c.is_alphanumeric() || "._-".contains(c));
    let all = || config.get(pattern).and_then(Value::as_object).into_iter().flatten();
    if let Some(key) = all().map(|(key, _)| key).find(|key| !plain(key)) {
        return refuse(path, format!("`{pattern}` has {key:?}: limpid reads names of modules and their ends only"));
    }
    let ends = |key: &str| module.strip_suffix(key).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    let mut found = all().filter(|(key, _)| ends(key)).map(|(_, value)| value);
    let first = found.next();
    if found.any(|other| Some(other) != first) {
        return refuse(path, format!("several keys of `{pattern}` are for `{module}`: keep one of them"));
    }
    Ok(first)
}

/// Reads rank, alpha and dropout; refuses everything beyond plain LoRA.
fn settings(path: &Path, config: &Map<String, Value>) -> Result<(usize, f64, f64)> {
    let get = |key: &str| config.get(key).unwrap_or(&Value::Null);
    let unsupported = |key: &str| refuse(path, format!("`{key}` is {}: limpid reads plain LoRA only", get(key)));
    if get("peft_type") != "LORA" {
        return unsupported("peft_type");
    }
    if !get("bias").is_null() && get("bias") != "none" {
        return unsupported("bias");
    }
    // the others change the model that the adapter is for
    let start = get("init_lora_weights").as_str().is_none_or(|s| ["gaussian", "eva", "orthogonal"].contains(&s));
    if !start {
        return unsupported("init_lora_weights");
    }
    let says_no = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    if let Some(key) = config.keys().find(|key| !IDLE.contains(&key.as_str()) && !says_no(&config[*key])) {
        return unsupported(key);
    }
    let rank = get("r").as_u64().filter(|r| (1..=1 << 16).contains(r));
    let alpha = get("lora_alpha").as_f64().filter(|a| a.is_finite());
    match (rank, alpha) {
        (Some(rank), Some(alpha)) => Ok((rank as usize, alpha, get("lora_dropout").as_f64().unwrap_or(0.0))),
        (None, _) => refuse(path, format!("`r` is {}: it must be a whole number above 0", get("r"))),
        (_, None) => refuse(path, format!("`lora_alpha` is {}: it must be a number", get("lora_alpha"))),
    }
}

/// The names of a product's two tensors.
fn pair(module: &str) -> [String; 2] {
    ["A", "B"].map(|part| format!("{PREFIX}{module}.lora_{part}.weight"))
}

/// The link of a matrix, for the B that stands in its place: (out, r) whichever way the matrix lies.
fn turned(link: Link) -> Link {
    let turn = if link.turn == TensorLayout::Transposed { TensorLayout::Same } else { link.turn };
    Link { turn, ..link }
}

/// A module's name from that of one of its two tensors.
fn module_of(tensor: &str) -> Option<&str> {
    let name = tensor.strip_prefix(PREFIX)?.strip_suffix(".weight")?;
    name.strip_suffix(".lora_A").or(name.strip_suffix(".lora_B"))
}

impl Adapter {
    /// Opens the adapter in the folder `path` for `model`, of which `like` says how messages name it.
    ///
    /// # Errors
    /// If a file is missing or damaged, if the adapter is more than plain LoRA, or if it was made for another model;
    /// the error names the modules of both.
    pub fn open(path: &Path, model: &Model, like: &Path) -> Result<Adapter> {
        Adapter::open_in(&[], path, model, like, Access::default())
    }

    /// The same. Where several dialects have all its modules, it is limpid's word for whose they are that counts, then
    /// the first of `likely`.
    pub(crate) fn open_in(
        likely: &[Arc<dyn Dialect>],
        path: &Path,
        model: &Model,
        like: &Path,
        access: Access,
    ) -> Result<Adapter> {
        let (config_path, config) = (path.join(CONFIG), read_config(path)?);
        let (rank, alpha, dropout) = settings(&config_path, &config)?;
        if !path.join(ADAPTER_WEIGHTS).exists() && path.join("adapter_model.bin").exists() {
            return Err(safetensors_file::pickle(&path.join("adapter_model.bin")));
        }
        let store = safetensors_file::open_as(&path.join(ADAPTER_WEIGHTS), access)?;
        let other =
            |what: String| bad(path, format!("{what}: the adapter was made for another model than {}", like.display()));
        let mut names: Vec<&str> = vec![];
        for name in store.names() {
            match module_of(name) {
                Some(module) if !names.contains(&module) => names.push(module),
                Some(_) => {}
                None => return refuse(store.path(), format!("`{name}` is not a matrix of a plain LoRA adapter")),
            }
        }
        let said = base(path)?.map(|base| base.dialect(model));
        let (dialect, links) = spoken(said.into_iter().chain(likely.iter().cloned()), model, &names);
        let mut modules = vec![];
        for module in names {
            let Some(links) = held(&*dialect, model, &links, module) else {
                return Err(other(format!("it adapts `{module}`, which that model does not have ({})", model.config)));
            };
            let links: Vec<Link> = links.into_iter().map(turned).collect();
            let param = model.param(&links[0].param).expect("links are of the model's parameters");
            let asked =
                patterned(&config_path, &config, RANKS, module)?.map(|rank| rank.as_u64().unwrap_or(0) as usize);
            let scaled =
                patterned(&config_path, &config, ALPHAS, module)?.map(|alpha| alpha.as_f64().unwrap_or(f64::NAN));
            let (rank, alpha) = (asked.unwrap_or(rank), scaled.unwrap_or(alpha));
            if !(1..=1 << 16).contains(&rank) || !alpha.is_finite() {
                return refuse(&config_path, format!("`{RANKS}` or `{ALPHAS}` has no number for `{module}`"));
            }
            let names = pair(module);
            for (name, wanted) in names.iter().zip([[rank, param.region.cols], [links[0].their_rows(), rank]]) {
                let Some(found) = store.get(name) else {
                    return Err(CheckpointError::Missing { path: store.path().into(), tensor: name.clone() });
                };
                if found.shape != wanted {
                    return Err(other(format!(
                        "`{name}` is {:?}, and for `{}` it must be {wanted:?}",
                        found.shape, param.name
                    )));
                }
                found.values()?; // a type that is not read
            }
            modules.push(AdaptedModule { links, names, rank, scale: alpha / rank as f64 });
        }
        let mut targets: Vec<String> = vec![];
        for link in modules.iter().flat_map(|module| &module.links) {
            let target = link.param.trim_end_matches(".weight").to_string();
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        Ok(Adapter { path: path.into(), lora: Lora { rank, alpha, dropout, targets }, store, modules })
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Both matrices of a module: A (r, in), B (rows, r) in their order of rows.
    fn matrices(&self, module: &AdaptedModule) -> Result<[Cow<'_, [f32]>; 2]> {
        let [a, b] = module.names.each_ref().map(|name| self.store.get(name).expect("checked when it was opened"));
        Ok([a.values()?, b.values()?])
    }

    /// Whether it adds to a parameter.
    pub fn adapts(&self, param: &Param) -> bool {
        self.modules.iter().flat_map(|module| &module.links).any(|link| link.param == param.name)
    }

    /// The values of a parameter with what is added to it.
    ///
    /// # Errors
    /// If a tensor cannot be read, or a finite weight becomes infinite or NaN.
    pub fn merge<'a>(&self, param: &Param, values: Cow<'a, [f32]>) -> Result<Cow<'a, [f32]>> {
        let cols = param.region.cols;
        let mut values = values;
        for module in &self.modules {
            for link in module.links.iter().filter(|link| link.param == param.name) {
                let [a, b] = self.matrices(module)?;
                let b = link.ours(b, module.rank);
                let rows = link.rows.start * cols..link.rows.end * cols;
                add(&param.name, &mut values.to_mut()[rows], [&a, &b], (cols, module.rank), module.scale)?;
            }
        }
        Ok(values)
    }

    /// Writes both matrices of every product into a backend made for `model`, which has an adapter of these targets.
    ///
    /// # Errors
    /// If a module has another rank or scale than the model's adapter, or a different A than another module that is the
    /// same product here; the backend is then unchanged.
    pub fn load(&self, model: &Model, backend: &mut dyn Backend) -> Result<()> {
        let only_merged = |what: String| {
            refuse(&self.path, format!("{what}: the adapter can be merged (`convert`), but not trained further"))
        };
        let Some(lora) = &model.tuning.lora else {
            return only_merged("the model is trained without an adapter".into());
        };
        let mut products: Vec<LoadedProduct> = vec![];
        for module in &self.modules {
            let [a, b] = self.matrices(module)?;
            let own = |link: &Link| model.param(&link.param).and_then(|weight| model.adapter(weight));
            let mut adapted: Vec<&str> =
                module.links.iter().filter(|link| own(link).is_some()).map(|link| &*link.param).collect();
            adapted.dedup();
            // of stacked products each has ranks of its own; one that has no adapter has rows of zeros
            let stacked = adapted.len() > 1 && module.rank == adapted.len() * lora.rank;
            if !(stacked || module.rank == lora.rank) || module.scale != self.lora.scale() {
                let (name, rank, scale) = (&module.links[0].name, module.rank, module.scale);
                return only_merged(format!(
                    "`{name}` has rank {rank} and scale {scale}, not those of the model's adapter"
                ));
            }
            for link in &module.links {
                let b = link.ours(b.clone(), module.rank);
                let place = adapted.iter().position(|name| *name == link.param);
                let first = if stacked { place.unwrap_or(0) * lora.rank } else { 0 };
                let ranks = first..first + lora.rank;
                let is_own = |i: usize| place.is_some() && ranks.contains(&(i % module.rank));
                if b.iter().enumerate().any(|(i, value)| !is_own(i) && *value != 0.0) {
                    return only_merged(format!(
                        "`{}` adds to {} what the model's adapter cannot",
                        link.name, link.param
                    ));
                }
                let Some([_, to_b]) = own(link) else { continue };
                let a = &a[ranks.start * a.len() / module.rank..ranks.end * a.len() / module.rank];
                let all = match products.iter_mut().find(|product| product.param == link.param) {
                    Some(product) if product.a != a => {
                        return only_merged(format!("the modules that are {} here each have their own A", link.param));
                    }
                    Some(product) => &mut product.b,
                    None => {
                        let (param, a, b) = (link.param.clone(), a.to_vec(), vec![0f32; to_b.region.len()]);
                        products.push(LoadedProduct { param, a, b });
                        &mut products.last_mut().expect("it was pushed").b
                    }
                };
                for (row, values) in link.rows.clone().zip(b.chunks_exact(module.rank)) {
                    all[row * lora.rank..][..lora.rank].copy_from_slice(&values[ranks.clone()]);
                }
            }
        }
        for LoadedProduct { param, a, b } in products {
            let [to_a, to_b] = model.param(&param).and_then(|weight| model.adapter(weight)).expect("as above");
            backend.write(to_a.region, &a)?;
            backend.write(to_b.region, &b)?;
        }
        Ok(())
    }
}

/// Both matrices of one of our products.
struct LoadedProduct {
    param: String,
    a: Vec<f32>,
    b: Vec<f32>,
}

/// The links of a module in a dialect, if the model has it there.
fn held(dialect: &dyn Dialect, model: &Model, links: &[Link], module: &str) -> Option<Vec<Link>> {
    let name = dialect.canonical(&format!("{module}.weight"), &model.config)?;
    let held: Vec<Link> = links.iter().filter(|link| link.name == name).cloned().collect();
    (!held.is_empty()).then_some(held)
}

/// The dialect in which a model has most of the modules, and its links: of several the first of `likely`, then ours,
/// then that of the first family.
fn spoken(
    likely: impl Iterator<Item = Arc<dyn Dialect>>,
    model: &Model,
    modules: &[&str],
) -> (Arc<dyn Dialect>, Vec<Link>) {
    let families = [None].into_iter().chain(huggingface::ALL.iter().map(Some)).map(names_of);
    let all = likely.chain(families).map(|dialect| {
        let links = dialect.links(model);
        let found = modules.iter().filter(|module| held(&*dialect, model, &links, module).is_some()).count();
        (found, dialect, links)
    });
    let best = all.reduce(|best, next| if next.0 > best.0 { next } else { best });
    let (_, dialect, links) = best.expect("there are dialects");
    (dialect, links)
}

/// Adds to rows of the parameter `name` what A (r, in) and B (rows, r) make of them.
///
/// # Errors
/// If a finite weight becomes infinite or NaN, which would make every result useless.
fn add(name: &str, rows: &mut [f32], [a, b]: [&[f32]; 2], (cols, rank): (usize, usize), scale: f64) -> Result<()> {
    let mut sum = vec![0f64; cols];
    for (row, b) in rows.chunks_exact_mut(cols).zip(b.chunks_exact(rank)) {
        sum.fill(0.0);
        for (b, a) in b.iter().zip(a.chunks_exact(cols)) {
            sum.iter_mut().zip(a).for_each(|(sum, a)| *sum += f64::from(*b) * f64::from(*a));
        }
        for (w, sum) in row.iter_mut().zip(&sum) {
            let (was, with) = (*w, (f64::from(*w) + scale * sum) as f32);
            if was.is_finite() && !with.is_finite() {
                return Err(CheckpointError::Unbounded { tensor: name.into(), was, with, scale });
            }
            *w = with;
        }
    }
    Ok(())
}

/// The values of a parameter of a model in memory with its own adapter merged in; the same values as
/// [`Adapter::merge`].
///
/// # Errors
/// If the backend fails, or as for [`Adapter::merge`].
pub fn merged(model: &Model, backend: &dyn Backend, param: &Param) -> Result<Vec<f32>> {
    let mut values = backend.read(param.region)?;
    if let (Some(lora), Some([a, b])) = (&model.tuning.lora, model.adapter(param)) {
        let [a, b] = [backend.read(a.region)?, backend.read(b.region)?];
        add(&param.name, &mut values, [&a, &b], (param.region.cols, lora.rank), lora.scale())?;
    }
    Ok(values)
}

/// Whose names the adapters had that do not say it: those of the family nearest to the model, if no module there is
/// part of one of our products or several of them, else ours.
fn earlier_dialect(model: &Model) -> Arc<dyn Dialect> {
    let is_plain = |family: &&'static Family| family.links(model).iter().all(|link| link.within.is_none());
    names_of(huggingface::express(&model.config, None).ok().map(|(family, ..)| family).filter(is_plain))
}

/// A module that is written: its name there, and which rows of which products it holds, each beside its own A and B.
struct WrittenModule<'m> {
    name: String,
    links: Vec<Link>,
    products: Vec<[&'m Param; 2]>,
}

/// Every module that a model's adapter adapts.
fn written<'m>(model: &'m Model, dialect: &dyn Dialect) -> Vec<WrittenModule<'m>> {
    let mut all: Vec<WrittenModule> = vec![];
    for link in dialect.links(model) {
        let Some(product) = model.param(&link.param).and_then(|weight| model.adapter(weight)) else { continue };
        let full = dialect.full(&link.name, &model.config);
        let name = full.trim_end_matches(".weight").to_string();
        let at = all.iter().position(|module| module.name == name).unwrap_or_else(|| {
            all.push(WrittenModule { name, links: vec![], products: vec![] });
            all.len() - 1
        });
        let module = &mut all[at];
        if module.links.last().is_none_or(|last| last.param != link.param) {
            module.products.push(product);
        }
        module.links.push(turned(link));
    }
    all
}

impl WrittenModule<'_> {
    /// A (r, in) of each product below that of the one before it.
    fn a(&self, backend: &dyn Backend) -> Result<Vec<f32>> {
        let parts = self.products.iter().map(|[a, _]| backend.read(a.region)).collect::<Result<Vec<_>, _>>()?;
        Ok(parts.concat())
    }

    /// B (rows, r) of each product beside that of the one before it, zeros where its rows are another's.
    fn b(&self, backend: &dyn Backend) -> Result<Vec<f32>> {
        let rank = self.products[0][1].region.cols;
        let (rows, all) = (self.links[0].their_rows(), self.products.len() * rank);
        let (mut stacked, mut links) = (vec![0f32; rows * all], &self.links[..]);
        for (i, [_, b]) in self.products.iter().enumerate() {
            let own = links.iter().take_while(|link| link.param == links[0].param).count();
            let held: Vec<(Link, Param)> = links[..own].iter().map(|link| (link.clone(), (*b).clone())).collect();
            links = &links[own..];
            let theirs = together(&held, &|b| Ok(backend.read(b.region)?))?;
            for (row, values) in theirs.chunks_exact(rank).enumerate() {
                stacked[row * all + i * rank..][..rank].copy_from_slice(values);
            }
        }
        Ok(stacked)
    }
}

/// What an adapter's folder begins with: the names and texts of `adapter_config.json` and `base.json`.
pub fn describe(model: &Model, base: &Base) -> Vec<(String, String)> {
    let Some(lora) = &model.tuning.lora else { return vec![] };
    let dialect = base.dialect(model);
    let causal = model.config.mask == limpid_core::config::Mask::Causal;
    let modules = written(model, &*dialect);
    let targets: Vec<&str> = modules.iter().map(|module| &*module.name).collect();
    let mut config = json!({
        "peft_type": "LORA", "task_type": if causal { json!("CAUSAL_LM") } else { Value::Null },
        "base_model_name_or_path": base.path, "r": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout,
        "target_modules": targets, "fan_in_fan_out": dialect.is_transposed(), "bias": "none", "inference_mode": true,
        "init_lora_weights": true,
    });
    for module in modules.iter().filter(|module| module.products.len() > 1) {
        let times = module.products.len();
        config[RANKS][&module.name] = json!(times * lora.rank);
        config[ALPHAS][&module.name] = json!(times as f64 * lora.alpha);
    }
    let base = serde_json::to_string_pretty(base).expect("a base is JSON");
    vec![(CONFIG.into(), format!("{config:#}\n")), ("base.json".into(), format!("{base}\n"))]
}

/// The matrices of a model's adapter, as they are written to `folder`, which [`describe`] began.
pub(crate) fn tensors<'a>(folder: &Path, model: &'a Model, backend: &'a dyn Backend) -> Result<Vec<OutputTensor<'a>>> {
    let dialect = base(folder)?.map_or_else(|| earlier_dialect(model), |base| base.dialect(model));
    let mut outs = vec![];
    for module in written(model, &*dialect) {
        let ([a_name, b_name], [a, b]) = (pair(&module.name), module.products[0]);
        let rank = module.products.len() * b.region.cols;
        let shapes = [vec![rank, a.region.cols], vec![module.links[0].their_rows(), rank]];
        let module = Rc::new(module);
        let makes: [MakeValues; 2] = [
            Box::new({
                let module = module.clone();
                move || module.a(backend)
            }),
            Box::new(move || module.b(backend)),
        ];
        for ((name, shape), make) in [a_name, b_name].into_iter().zip(shapes).zip(makes) {
            outs.push(OutputTensor::new(name, Dtype::F32, shape, vec![make]));
        }
    }
    Ok(outs)
}

/// Reads an adapter into a model that has one.
pub(crate) fn load(folder: &Path, model: &Model, backend: &mut dyn Backend) -> Result<()> {
    Adapter::open(folder, &outline(folder, &model.config)?, folder)?.load(model, backend)
}
