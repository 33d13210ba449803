//! What is known of a model before anything is run.

use crate::{GlassError, Reply, Result, Subject, training};
use limpid::generate::example;
use limpid_base::words::model_words;
use limpid_core::config::Mask;
use limpid_core::model::{Mode, Model, Param};
use limpid_trace::names::{self, Notation};
use serde_json::{Value, json};

/// The first of several models, and the names of all.
pub fn model(subjects: &[Subject], memory: usize) -> Result<Reply> {
    let subject = subjects.first().ok_or_else(|| GlassError::Model(String::new(), String::new()))?;
    let c = subject.lm.config();
    let model = Model::new(c, Mode::Inspect { batch: 1, context: 1 }).map_err(limpid::Error::from)?;
    let param = |param: &Param| json!({ "name": param.name, "shape": param.shape(), "group": param.group() });
    let params: Vec<Value> = model.params.iter().map(param).collect();
    let groups: Vec<Value> = model.groups().iter().map(|(group, n)| json!({ "group": group, "count": n })).collect();
    Ok(json!({
        "id": subject.name,
        "fingerprint": subject.fingerprint,
        "step": subject.step,
        "parameters": model.parameter_count(),
        "n_layer": c.n_layer,
        "n_head": c.n_head,
        "n_kv_head": c.heads().n_kv_head,
        "d_model": c.d_model,
        "d_embed": c.d_embed,
        "d_head": c.d_head(),
        "d_ff": c.d_ff,
        "context_length": c.context_length,
        "vocab_size": c.vocab_size,
        "causal": c.mask == Mask::Causal,
        "lm_head": c.lm_head,
        "norm_place": c.norm_place.to_string(),
        "final_norm": c.final_norm,
        "activation": c.activation.to_string(),
        "timelapse": training::has_timelapse(subject),
        "training": training::log(subject).is_some(),
        "example": subject.lm.tokenizer().ok().and_then(|tokenizer| example(tokenizer, c)),
        "place": place(subject),
        "models": subjects.iter().map(|subject| subject.name.as_str()).collect::<Vec<_>>(),
        "config": c,
        "params": params,
        "groups": groups,
        "notation": notation(&model),
        "precision": subject.lm.machine().precision.to_string(),
        "device": "cpu",
        "memory": memory,
    })
    .into())
}

/// The words that name the model in a command: where it is, as it was opened, and its adapters; none of a model that is
/// in no file.
fn place(subject: &Subject) -> Vec<String> {
    let Some(files) = subject.lm.checkpoint() else { return vec![] };
    let adapters = files.adapters.iter().filter(|adapter| adapter.path != files.path);
    model_words(&files.path, adapters.map(|adapter| adapter.path.as_path()))
}

/// Every symbol of this model with its meaning and its shape, of one block.
fn notation(model: &Model) -> Vec<Value> {
    let mut seen = std::collections::HashSet::new();
    let all = names::activations(model).into_iter().skip(1).chain(model.params.iter().map(|p| p.name.clone()));
    let line = |name: String| {
        let (entry, _) = names::lookup(&name).filter(|(_, block)| block.is_none_or(|block| block == 0))?;
        let symbol = names::symbol(&name, &model.config)?;
        let letters = Notation::Limpid.letters(&name, &names::axes(&name, &model.config), &model.config);
        seen.insert(symbol.clone())
            .then(|| json!({ "symbol": symbol, "name": name, "meaning": entry.about, "letters": letters }))
    };
    all.filter_map(line).collect()
}
