//! The words of JSON Schema that `/openapi.json` uses. [`crate::parameters`] says with them what a request may be,
//! [`crate::openapi`] what an answer is.

use limpid::Interventions;
use serde_json::{Map, Value, json};

/// The most prompts of one request, and the most answers.
pub(crate) const PROMPTS: usize = 256;
/// The most stop strings of one request, and the most bytes of each.
pub(crate) const STOPS: (usize, usize) = (16, 256);

/// Fields of messages that OpenAI or another server has and limpid lacks. Clients send them back empty.
pub(crate) const ELSEWHERE: [&str; 12] = [
    "annotations",
    "audio",
    "function_call",
    "images",
    "name",
    "provider_specific_fields",
    "reasoning",
    "reasoning_content",
    "refusal",
    "thinking_blocks",
    "tool_call_id",
    "tool_calls",
];

pub fn string() -> Value {
    json!({ "type": "string" })
}

pub fn boolean() -> Value {
    json!({ "type": "boolean" })
}

pub fn integer() -> Value {
    json!({ "type": "integer" })
}

pub fn natural() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

pub fn integer_between(least: i64, most: i64) -> Value {
    json!({ "type": "integer", "minimum": least, "maximum": most })
}

/// A number, without a fraction if it has none.
pub fn plain(value: f64) -> Value {
    if value.fract() == 0.0 { (value as i64).into() } else { value.into() }
}

pub fn number() -> Value {
    json!({ "type": "number" })
}

pub fn one_of(values: &[&str]) -> Value {
    json!({ "enum": values })
}

pub fn array(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

pub fn any_of(choices: &[Value]) -> Value {
    json!({ "anyOf": choices })
}

/// A schema of the document's `components`.
pub fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// An object with all of `required`, any of `optional`, and nothing else.
pub fn object(required: &[(&str, Value)], optional: &[(&str, Value)]) -> Value {
    let properties = required.iter().chain(optional).map(|(name, schema)| (name.to_string(), schema.clone()));
    let mut object = json!({
        "type": "object",
        "properties": properties.collect::<Map<String, Value>>(),
        "additionalProperties": false,
    });
    if !required.is_empty() {
        object["required"] = required.iter().map(|(name, _)| *name).collect();
    }
    object
}

/// An object with exactly these.
pub fn record(fields: &[(&str, Value)]) -> Value {
    object(fields, &[])
}

pub fn described(mut schema: Value, about: &str) -> Value {
    schema["description"] = about.into();
    schema
}

/// The same, or `null`.
pub fn nullable(mut schema: Value) -> Value {
    if schema["type"].is_string() {
        schema["type"] = json!([schema["type"], "null"]);
    } else if let Some(values) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        values.push(Value::Null);
    } else if let Some(choices) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        choices.push(json!({ "type": "null" }));
    } else {
        return any_of(&[schema, json!({ "type": "null" })]);
    }
    schema
}

// ---- parameters that are more than a number, a string or a choice

pub fn token_ids() -> Value {
    array(natural())
}

/// A prompt, or several, each as text or as token ids.
pub fn prompts() -> Value {
    let at_least_one = |items: Value| json!({ "type": "array", "items": items, "minItems": 1 });
    let several = |items: Value| json!({ "type": "array", "items": items, "minItems": 1, "maxItems": PROMPTS });
    any_of(&[string(), at_least_one(natural()), several(string()), several(at_least_one(natural()))])
}

pub fn messages() -> Value {
    json!({ "type": "array", "items": reference("Message"), "minItems": 1 })
}

pub fn stops() -> Value {
    let (most, longest) = STOPS;
    let one = json!({ "type": "string", "minLength": 1, "maxLength": longest });
    any_of(&[one.clone(), json!({ "type": "array", "items": one, "maxItems": most })])
}

pub fn logit_bias() -> Value {
    json!({
        "type": "object",
        "properties": {},
        "propertyNames": { "pattern": "^(0|[1-9][0-9]*)$" },
        "additionalProperties": { "type": "number", "minimum": -100, "maximum": 100 },
    })
}

/// Steps that change a run. What a step may be depends on the model; its parts are described in docs/interventions.md.
pub fn interventions() -> Value {
    let step = json!({ "type": "object", "properties": {}, "additionalProperties": true });
    let steps = json!({ "type": "array", "items": step, "minItems": 1, "maxItems": Interventions::MOST_STEPS });
    let named =
        object(&[("do", steps.clone())], &[("name", string()), ("limpid_interventions", json!({ "enum": [1] }))]);
    any_of(&[steps, named])
}

/// A message of a conversation. Only an assistant's may be without content.
pub fn message() -> Value {
    let mut part = record(&[("type", one_of(&["text"])), ("text", string())]);
    part["additionalProperties"] = json!({ "type": "null" });
    let silent = json!({ "type": "null", "description": "The assistant said nothing." });
    let unsupported = json!({ "description": UNSUPPORTED, "enum": [null, "", [], {}] });
    let roles = one_of(&["system", "developer", "user", "assistant"]);
    let mut message = object(&[("role", roles)], &[("content", any_of(&[string(), silent, array(part)]))]);
    for name in ELSEWHERE {
        message["properties"][name] = unsupported.clone();
    }
    let content = any_of(&[string(), json!({ "type": "array" })]);
    message["anyOf"] = json!([
        { "required": ["role"], "properties": { "role": one_of(&["assistant"]) }, "additionalProperties": true },
        { "required": ["content"], "properties": { "content": content }, "additionalProperties": true },
    ]);
    message
}

/// Said of what OpenAI has and limpid lacks.
pub const UNSUPPORTED: &str = "Not supported: other values are refused";
