//! LoRA adapters in files, as PEFT stores them: `adapter_config.json` describes the adapter, and `adapter_model.safetensors` holds two
//! matrices for each product, under HuggingFace's names (ours, if HuggingFace has no such model). Some of our products are several
//! modules there, such as Llama's queries, keys and values: the file then repeats A for each module and splits B among them.
//!
//! An opened adapter is a layer over a [`Checkpoint`](super::Checkpoint): its weights are w + alpha / r B A, summed in f64 and rounded
//! once. A run's folder also has `base.json`, which names the model that the adapter was trained on.

use super::dialect::{Link, TensorLayout, huggingface, outline};
use super::store::{Dtype, MakeValues, OutputTensor, Store, bad, refuse};
use super::{CheckpointError, Dialect, Result, read_json, safetensors_file};
use limpid_core::backend::Backend;
use limpid_core::model::{Lora, Model, Param};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

pub(super) const CONFIG: &str = "adapter_config.json";
pub(super) const WEIGHTS: &str = "adapter_model.safetensors";
const PREFIX: &str = "base_model.model.";

/// The model that an adapter was made for: `base.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// Where it was.
    pub path: PathBuf,
    /// [`Checkpoint::fingerprint`](super::Checkpoint::fingerprint)
    pub fingerprint: String,
}

/// An adapter in its files, fitted to a model.
pub struct Adapter {
    /// Its folder.
    pub path: PathBuf,
    /// Rank, scale, and the products it is for by our names.
    pub lora: Lora,
    store: Store,
    parts: Vec<AdaptedRows>,
}

/// What it adds to some rows of a matrix.
struct AdaptedRows {
    link: Link,
    /// Names of both tensors.
    names: [String; 2],
}

/// Whether a folder holds an adapter and no model.
pub fn is_one(folder: &Path) -> bool {
    folder.join(CONFIG).exists()
        && !["model.safetensors", "model.safetensors.index.json"].map(|n| folder.join(n).exists()).contains(&true)
}

/// The model that the adapter in `folder` names as its base, if any: its path, and its fingerprint if limpid wrote the adapter.
///
/// # Errors
/// If its files cannot be read.
pub fn base(folder: &Path) -> Result<Option<(PathBuf, Option<String>)>> {
    let path = folder.join("base.json");
    if path.exists() {
        let base: Base = read_json(&path, "it cannot be read")?;
        return Ok(Some((base.path, Some(base.fingerprint))));
    }
    let config = read_config(folder)?;
    let name = config.get("base_model_name_or_path").and_then(Value::as_str).filter(|name| !name.is_empty());
    Ok(name.map(|name| (name.into(), None)))
}

fn read_config(folder: &Path) -> Result<Map<String, Value>> {
    let path = folder.join(CONFIG);
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
        |v| v.is_string() || v.as_array().is_some_and(|all| all.iter().all(Value::is_string)), "a text or a list of texts"),
    (&["layers_to_transform"], |v| v.is_u64() || v.as_array().is_some_and(|all| all.iter().all(Value::is_u64)),
        "a whole number or a list of them"),
    (&["modules_to_save", "layer_replication", "target_parameters", "alora_invocation_tokens"], Value::is_array, "a list"),
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
];

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

impl Adapter {
    /// Opens the adapter in the folder `path` for `model`, of which `like` says how messages name it.
    ///
    /// # Errors
    /// If a file is missing or damaged, if the adapter is more than plain LoRA, or if it was made for another model; the error names
    /// the modules of both.
    pub fn open(path: &Path, model: &Model, like: &Path) -> Result<Adapter> {
        Adapter::open_in(dialect(model), path, model, like, true)
    }

    /// The same, of a model in files of which the names of one dialect are known: of several that have the modules it is meant.
    pub(super) fn open_in(own: Dialect, path: &Path, model: &Model, like: &Path, verified: bool) -> Result<Adapter> {
        let config_path = path.join(CONFIG);
        let (rank, alpha, dropout) = settings(&config_path, &read_config(path)?)?;
        if !path.join(WEIGHTS).exists() && path.join("adapter_model.bin").exists() {
            return Err(safetensors_file::pickle(&path.join("adapter_model.bin")));
        }
        let store = safetensors_file::open(&path.join(WEIGHTS))?;
        let store = if verified { store } else { store.unverified() };
        let other =
            |what: String| bad(path, format!("{what}: the adapter was made for another model than {}", like.display()));
        let mut modules: Vec<&str> = vec![];
        for name in store.names() {
            let module = name.strip_prefix(PREFIX).and_then(|name| name.strip_suffix(".weight"));
            let module = module.and_then(|m| m.strip_suffix(".lora_A").or(m.strip_suffix(".lora_B")));
            match module {
                Some(module) if !modules.contains(&module) => modules.push(module),
                Some(_) => {}
                None => return refuse(store.path(), format!("`{name}` is not a matrix of a plain LoRA adapter")),
            }
        }
        let families = huggingface::ALL.iter().map(Dialect::HuggingFace);
        let dialects = [own, Dialect::Own].into_iter().chain(families);
        let find = |dialect: Dialect, links: &[Link], module: &str| {
            let name = match dialect {
                Dialect::HuggingFace(family) => family.tidy(&format!("{module}.weight"), &model.config)?,
                _ => format!("{module}.weight"),
            };
            let held: Vec<Link> = links.iter().filter(|link| link.name == name).cloned().collect();
            (!held.is_empty()).then_some(held)
        };
        let all = dialects.map(|dialect| (dialect, dialect.links(model)));
        let found = |(dialect, links): &(Dialect, Vec<Link>)| {
            modules.iter().filter(|module| find(*dialect, links, module).is_some()).count()
        };
        let spoken = all.reduce(|best, next| if found(&next) > found(&best) { next } else { best });
        let (dialect, links) = spoken.expect("there are dialects");
        let mut parts = vec![];
        for module in modules {
            let Some(links) = find(dialect, &links, module) else {
                return Err(other(format!("it adapts `{module}`, which that model does not have ({})", model.config)));
            };
            for link in links.into_iter().map(turned) {
                let param = model.param(&link.param).expect("links are of the model's parameters");
                let names = pair(module);
                for (name, wanted) in names.iter().zip([[rank, param.region.cols], [link.their_rows(), rank]]) {
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
                parts.push(AdaptedRows { link, names });
            }
        }
        let mut targets: Vec<String> = vec![];
        for part in &parts {
            let target = part.link.param.trim_end_matches(".weight").to_string();
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        Ok(Adapter { path: path.into(), lora: Lora { rank, alpha, dropout, targets }, store, parts })
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Both matrices of a part: A (r, in), B (rows, r) with our order of rows.
    fn matrices(&self, part: &AdaptedRows) -> Result<[Cow<'_, [f32]>; 2]> {
        let [a, b] = part.names.each_ref().map(|name| self.store.get(name).expect("checked when it was opened"));
        Ok([a.values()?, part.link.ours(b.values()?, self.lora.rank)])
    }

    /// Whether it adds to a parameter.
    pub fn adapts(&self, param: &Param) -> bool {
        self.parts.iter().any(|part| part.link.param == param.name)
    }

    /// The values of a parameter with what is added to it.
    ///
    /// # Errors
    /// If a tensor cannot be read, or a finite weight becomes infinite or NaN.
    pub fn merge<'a>(&self, param: &Param, values: Cow<'a, [f32]>) -> Result<Cow<'a, [f32]>> {
        let (cols, rank, scale) = (param.region.cols, self.lora.rank, self.lora.scale());
        let mut values = values;
        for part in self.parts.iter().filter(|part| part.link.param == param.name) {
            let [a, b] = self.matrices(part)?;
            let rows = part.link.rows.start * cols..part.link.rows.end * cols;
            add(&param.name, &mut values.to_mut()[rows], [&a, &b], (cols, rank), scale)?;
        }
        Ok(values)
    }

    /// Writes both matrices of every product into a backend made for `model`, which has an adapter of these targets.
    ///
    /// # Errors
    /// If the adapter has a different A for modules that are one product here; the backend is then unchanged.
    pub fn load(&self, model: &Model, backend: &mut dyn Backend) -> Result<()> {
        let mut writes = vec![];
        for target in &self.lora.targets {
            let weight = model.param(&format!("{target}.weight"));
            let Some([to_a, to_b]) = weight.and_then(|weight| model.adapter(weight)) else {
                return refuse(&self.path, format!("it adapts {target}, which the model's own adapter does not"));
            };
            let (mut first, mut all) = (None, vec![0f32; to_b.region.len()]);
            for part in self.parts.iter().filter(|part| part.link.param.trim_end_matches(".weight") == target) {
                let [a, b] = self.matrices(part)?;
                all[part.link.rows.start * self.lora.rank..part.link.rows.end * self.lora.rank].copy_from_slice(&b);
                if *first.get_or_insert_with(|| a.clone()) != a {
                    let what = format!(
                        "the modules that are {target} here each have their own A: the adapter can be merged, but not trained further"
                    );
                    return refuse(&self.path, what);
                }
            }
            writes.push((to_a.region, first.expect("a target has parts").into_owned()));
            writes.push((to_b.region, all));
        }
        Ok(writes.into_iter().try_for_each(|(region, values)| backend.write(region, &values))?)
    }
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

/// The values of a parameter of a model in memory with its own adapter merged in; the same values as [`Adapter::merge`].
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

/// Who names the products of a model's adapter: the family that it can be written as, or we; we, too, where a module there is
/// several products here, which have each an A of their own.
fn dialect(model: &Model) -> Dialect {
    let one = |family: &&huggingface::Family| family.links(model).iter().all(|link| link.within.is_none());
    let family = huggingface::express(&model.config, None).ok().map(|(family, ..)| family).filter(one);
    family.map_or(Dialect::Own, Dialect::HuggingFace)
}

/// Every adapted product, or part of one: its link and its module's name there.
fn modules(model: &Model) -> Vec<(Link, String)> {
    let dialect = dialect(model);
    let adapted = |link: &Link| model.param(&link.param).and_then(|weight| model.adapter(weight)).is_some();
    let named = |link: Link| {
        let full = match dialect {
            Dialect::HuggingFace(family) => family.full(&link.name, &model.config),
            _ => link.name.clone(),
        };
        (turned(link), full.trim_end_matches(".weight").to_string())
    };
    dialect.links(model).into_iter().filter(adapted).map(named).collect()
}

/// What an adapter's folder begins with: the names and texts of `adapter_config.json` and `base.json`.
pub fn describe(model: &Model, base: &Base) -> Vec<(String, String)> {
    let Some(lora) = &model.tuning.lora else { return vec![] };
    let dialect = dialect(model);
    let transposed = matches!(dialect, Dialect::HuggingFace(family) if family.transposed());
    let causal = model.config.mask == limpid_core::config::Mask::Causal;
    let targets: Vec<String> = modules(model).into_iter().map(|(_, name)| name).collect();
    let config = json!({
        "peft_type": "LORA", "task_type": if causal { json!("CAUSAL_LM") } else { Value::Null },
        "base_model_name_or_path": base.path, "r": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout,
        "target_modules": targets, "fan_in_fan_out": transposed, "bias": "none", "inference_mode": true,
        "init_lora_weights": true,
    });
    let base = serde_json::to_string_pretty(base).expect("a base is JSON");
    vec![(CONFIG.into(), format!("{config:#}\n")), ("base.json".into(), format!("{base}\n"))]
}

/// The matrices of a model's adapter, as they are written.
pub(super) fn tensors<'a>(model: &'a Model, backend: &'a dyn Backend) -> Vec<OutputTensor<'a>> {
    let mut outs = vec![];
    for (link, module) in modules(model) {
        let weight = model.param(&link.param).expect("links are of the model's parameters");
        let [a, b] = model.adapter(weight).expect("modules are adapted");
        let [a_name, b_name] = pair(&module);
        let out = |name, shape, values: MakeValues<'a>| OutputTensor::new(name, Dtype::F32, shape, vec![values]);
        outs.push(out(a_name, a.shape(), Box::new(move || Ok(backend.read(a.region)?))));
        let shape = vec![link.rows.len(), b.region.cols];
        outs.push(out(b_name, shape, Box::new(move || Ok(link.theirs(b, &backend.read(b.region)?)))));
    }
    outs
}

/// Reads an adapter into a model that has one.
pub(super) fn load(folder: &Path, model: &Model, backend: &mut dyn Backend) -> Result<()> {
    let plain = outline(&model.config).map_err(|source| CheckpointError::Config { path: folder.into(), source })?;
    Adapter::open(folder, &plain, folder)?.load(model, backend)
}
