//! Texts to tokens and back, and what is served: the endpoints that need no run of the model.
//!
//! Their shapes are those of vLLM and llama.cpp at once. lm-eval finds them by itself and then needs no tokenizer of
//! its own.

use crate::ServedModel;
use crate::answer::name;
use crate::openai::{chat_ids, dated, encode, ids, messages, read, template_fault, tokenizer};
use crate::parameters::{APPLY_TEMPLATE, DETOKENIZE, RequestFields, TOKENIZE};
use crate::refusal::{Refusal, Result};
use limpid::data::chat::Message;
use limpid::data::template::ChatTemplate;
use limpid::model::{Mode, Model};
use serde_json::{Value, json};

/// What turns a body into something, with the model.
pub type Reader<T> = fn(&ServedModel, &[u8]) -> Result<T>;

/// `POST /tokenize`.
///
/// # Errors
/// The first thing that is wrong with the body.
pub fn tokenize(model: &ServedModel, body: &[u8]) -> Result<Value> {
    let fields = read(model, &TOKENIZE, body)?;
    let given: Vec<&str> = TOKENIZE.exactly_one.iter().copied().filter(|name| fields.get(name).is_some()).collect();
    let parse = fields.flag("parse_special");
    let whole = fields.flag("add_special_tokens") || fields.flag("add_special");
    let tokens = match given[..] {
        ["messages"] => {
            let (template, messages) = conversation(model, &fields)?;
            if fields.flag("add_generation_prompt") {
                chat_ids(model, template, &messages)?
            } else {
                template.whole_ids(&messages, tokenizer(model)?).map_err(|error| template_fault(&error))?
            }
        }
        [name] => encode(model, name, fields.text(name).unwrap_or_default(), parse, whole)?,
        [] => return Err(Refusal::missing_field("prompt", "`prompt`, `content` or `messages`")),
        [first, second, ..] => {
            let expected = format!("left out where `{first}` is given");
            return Err(Refusal::invalid_value(second, &expected, "both"));
        }
    };
    let tokenizer = tokenizer(model)?;
    let pieces = || tokens.iter().map(|&id| (id, name(tokenizer, id)));
    let mut answer =
        json!({ "count": tokens.len(), "max_model_len": model.lm.config().context_length, "tokens": tokens });
    if fields.flag("with_pieces") {
        let one = |(id, (text, bytes)): (u32, (String, Option<Vec<u8>>))| match bytes {
            Some(bytes) if str::from_utf8(&bytes).is_err() => json!({ "id": id, "piece": bytes }),
            _ => json!({ "id": id, "piece": text }),
        };
        answer["tokens"] = pieces().map(one).collect();
    }
    if fields.flag("return_token_strs") {
        answer["token_strs"] = pieces().map(|(_, (text, _))| Value::from(text)).collect();
    }
    Ok(answer)
}

/// `POST /detokenize`.
///
/// # Errors
/// The first thing that is wrong with the body.
pub fn detokenize(model: &ServedModel, body: &[u8]) -> Result<Value> {
    let fields = read(model, &DETOKENIZE, body)?;
    let tokens = match fields.required("tokens", "an array of token ids")? {
        Value::Array(items) if items.is_empty() => vec![],
        Value::Array(items) => ids(model, "tokens", items)?,
        other => return Err(Refusal::invalid_type("tokens", "an array of token ids", other)),
    };
    let text = tokenizer(model)?.decode(&tokens).map_err(Refusal::engine_error)?;
    Ok(json!({ "prompt": text, "content": text }))
}

/// `GET /tokenizer_info`.
///
/// # Errors
/// If the model has no tokenizer.
pub fn tokenizer_info(model: &ServedModel) -> Result<Value> {
    let tokenizer = tokenizer(model)?;
    let text = |id: Option<u32>| id.map(|id| name(tokenizer, id).0);
    let pad = ["<pad>", "[PAD]", "<|pad|>"].into_iter().find_map(|name| tokenizer.special(name));
    Ok(json!({
        "eos_token": text(tokenizer.end_of_text()),
        "bos_token": text(tokenizer.bos()),
        "pad_token": text(pad),
        "chat_template": model.template.as_ref().map(ChatTemplate::source),
        "tokenizer_class": tokenizer.name(),
        "vocab_size": tokenizer.vocab_size(),
    }))
}

/// `POST /apply-template`.
///
/// # Errors
/// The first thing that is wrong with the body, and if the model has no template.
pub fn apply_template(model: &ServedModel, body: &[u8]) -> Result<Value> {
    let fields = read(model, &APPLY_TEMPLATE, body)?;
    let (template, messages) = conversation(model, &fields)?;
    let prompt = dated(template).render(&messages, fields.flag("add_generation_prompt"));
    Ok(json!({ "prompt": prompt.map_err(|error| template_fault(&error))? }))
}

fn conversation<'a>(model: &'a ServedModel, fields: &RequestFields) -> Result<(&'a ChatTemplate, Vec<Message>)> {
    let messages = messages(fields.required("messages", "an array of messages")?)?;
    Ok((model.template.as_ref().ok_or_else(Refusal::no_chat_template)?, messages))
}

/// `GET /v1/models`.
pub fn models(model: &ServedModel, trains: bool) -> Value {
    json!({ "object": "list", "data": [card(model, trains)] })
}

/// `GET /v1/models/{id}`.
///
/// # Errors
/// If it is not the model that is served.
pub fn model(model: &ServedModel, trains: bool, id: &str) -> Result<Value> {
    if id == model.id { Ok(card(model, trains)) } else { Err(Refusal::model_not_found(id, &model.id)) }
}

fn card(model: &ServedModel, trains: bool) -> Value {
    let config = model.lm.config();
    let parameters = Model::new(config, Mode::Inspect { batch: 1, context: 1 }).map(|model| model.parameter_count());
    json!({
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "limpid",
        "max_model_len": config.context_length,
        "limpid": {
            "step": model.step,
            "context_length": config.context_length,
            "vocab_size": config.vocab_size,
            "parameters": parameters.ok(),
            "weights": model.fingerprint,
            "continues": model.continues(),
            "trains": trains,
        },
    })
}
