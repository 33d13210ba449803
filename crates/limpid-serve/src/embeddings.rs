//! Texts as vectors: `POST /v1/embeddings`.

use crate::ServedModel;
use crate::openai::{PROMPT_FORMS, prompts, read};
use crate::parameters::EMBEDDINGS;
use crate::refusal::{Refusal, Result, found};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use limpid::embed::{Pooling, normalized};
use serde_json::{Value, json};

/// `POST /v1/embeddings`. It ends early when `gone` says that nobody waits for it.
///
/// # Errors
/// The first thing that is wrong with the body, and if the model fails.
pub fn embeddings(model: &ServedModel, body: &[u8], gone: &dyn Fn() -> bool) -> Result<Value> {
    let fields = read(model, &EMBEDDINGS, body)?;
    let (width, context) = (model.lm.config().d_model, model.lm.config().context_length);
    if let Some(other) = fields.get("dimensions").filter(|wanted| wanted.as_u64() != Some(width as u64)) {
        let expected = format!("{width}, the model's width");
        return Err(Refusal::unsupported_parameter("dimensions", &expected, &found(other)));
    }
    let asked: Option<Pooling> = fields.text("limpid.pooling").and_then(|name| name.parse().ok());
    let stated = match asked {
        None => model.lm.sentence_recipe().map_err(Refusal::engine_error)?,
        Some(_) => None,
    };
    let pooling = asked.or(stated.as_ref().map(|(_, pooling)| *pooling)).unwrap_or_default();
    let asked = fields.get("limpid.normalize").and_then(Value::as_bool);
    let normalize = asked.unwrap_or(stated.is_none_or(|(recipe, _)| recipe.normalized));
    let inputs = prompts(model, "input", fields.required("input", PROMPT_FORMS)?, true)?;
    if let Some(long) = inputs.iter().find(|ids| ids.len() > context) {
        return Err(Refusal::context_length_exceeded("input", context, long.len(), None));
    }
    let one = |(index, ids): (usize, &Vec<u32>)| -> Result<Value> {
        if gone() {
            return Err(Refusal::stopping());
        }
        let vector = model.lm.embed_ids(ids, pooling).map_err(Refusal::engine_error)?;
        if !vector.iter().all(|x| x.is_finite()) {
            return Err(Refusal::engine_error(format!("the hidden states of input {index} are not finite")));
        }
        let vector = if normalize { normalized(vector) } else { vector };
        let embedding = match fields.text("encoding_format") {
            Some("base64") => STANDARD.encode(vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()).into(),
            _ => Value::from(vector),
        };
        Ok(json!({ "object": "embedding", "index": index, "embedding": embedding }))
    };
    let data = inputs.iter().enumerate().map(one).collect::<Result<Vec<Value>>>()?;
    let tokens: usize = inputs.iter().map(Vec::len).sum();
    Ok(json!({
        "object": "list",
        "data": data,
        "model": model.id,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    }))
}
