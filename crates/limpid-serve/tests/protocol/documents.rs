//! openapi.json, `/docs` and docs/serve.md say what the tables and real answers say.

use crate::served::{chars, gpt2, post};
use limpid::engine::{EngineEvent, TokenLogProb};
use limpid::generate::{FinishReason, GeneratedToken, Sample};
use limpid_serve::answer::Answer;
use limpid_serve::docs::{DEVIATIONS, OPENAPI, page};
use limpid_serve::parameters::{ENDPOINTS, NumberRange, Parameter, ParameterKind};
use limpid_serve::refusal::{CODES, Refusal};
use limpid_serve::{openai, tokens};
use serde_json::{Value, json};

fn openapi() -> Value {
    serde_json::from_str(OPENAPI).unwrap()
}

fn resolved<'a>(all: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(name) => all.pointer(name.strip_prefix('#').unwrap()).unwrap_or_else(|| panic!("{name}")),
        None => schema,
    }
}

/// What a value breaks of a schema, of the words that openapi.json uses; other words are a fault.
fn breaks(all: &Value, schema: &Value, value: &Value) -> Option<String> {
    let schema = resolved(all, schema);
    let number = |key: &str| schema[key].as_f64();
    for (word, says) in schema.as_object().unwrap() {
        let wrong = match word.as_str() {
            "type" => match says.as_str().unwrap() {
                "string" => !value.is_string(),
                "boolean" => !value.is_boolean(),
                "integer" => !value.is_i64() && !value.is_u64(),
                "number" => !value.is_number(),
                "array" => !value.is_array(),
                "object" => !value.is_object(),
                "null" => !value.is_null(),
                other => panic!("{other}"),
            },
            "enum" => !says.as_array().unwrap().contains(value),
            "anyOf" => says.as_array().unwrap().iter().all(|one| breaks(all, one, value).is_some()),
            "minimum" => value.as_f64() < number(word),
            "maximum" => value.as_f64() > number(word),
            "exclusiveMinimum" => value.as_f64() <= number(word),
            "exclusiveMaximum" => value.as_f64() >= number(word),
            "minItems" => value.as_array().is_some_and(|items| items.len() < says.as_u64().unwrap() as usize),
            "maxItems" => value.as_array().is_some_and(|items| items.len() > says.as_u64().unwrap() as usize),
            "minLength" => value.as_str().is_some_and(|text| text.len() < says.as_u64().unwrap() as usize),
            "maxLength" => value.as_str().is_some_and(|text| text.len() > says.as_u64().unwrap() as usize),
            "items" => {
                let mut items = value.as_array().into_iter().flatten();
                if let Some(inner) = items.find_map(|item| breaks(all, says, item)) {
                    return Some(inner);
                }
                false
            }
            "required" => {
                let missing = |name: &&Value| value.get(name.as_str().unwrap()).is_none();
                says.as_array().unwrap().iter().find(missing).is_some()
            }
            "properties" => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    let inner =
                        says.get(name).or(Some(&schema["additionalProperties"]).filter(|more| more.is_object()));
                    let more = schema["additionalProperties"] == true;
                    let fault = match inner {
                        Some(inner) => breaks(all, inner, value),
                        None => (!more).then(|| "is not known".into()),
                    };
                    if let Some(fault) = fault {
                        return Some(format!("{name}: {fault}"));
                    }
                }
                false
            }
            "additionalProperties" => false, // with `properties`
            "description" | "default" | "format" => false,
            other => panic!("{other} of {schema}"),
        };
        if wrong {
            return Some(format!("{word} {says}: {value}"));
        }
    }
    None
}

fn schema<'a>(all: &'a Value, name: &str) -> &'a Value {
    all.pointer(&format!("/components/schemas/{name}")).unwrap_or_else(|| panic!("{name}"))
}

/// One parameter, in both.
fn same(all: &Value, parameter: &Parameter, schema: &Value) {
    let (name, schema) = (parameter.name, resolved(all, schema));
    match parameter.kind {
        ParameterKind::Own(_) => {}
        ParameterKind::Text => assert_eq!(schema["type"], "string", "{name}"),
        ParameterKind::Flag => assert_eq!(schema["type"], "boolean", "{name}"),
        ParameterKind::Idle => assert_eq!(*schema, json!({ "description": "No effect." }), "{name}"),
        ParameterKind::Whole(i64::MIN, _) => assert_eq!(schema["format"], "int64", "{name}"),
        ParameterKind::Whole(least, most) => {
            assert_eq!((&schema["minimum"], &schema["maximum"]), (&json!(least), &json!(most)), "{name}");
        }
        ParameterKind::Number(NumberRange { least, most, above, below }) => {
            let of = |open: bool, closed: &str, other: &str| schema[if open { other } else { closed }].as_f64();
            assert_eq!(of(above, "minimum", "exclusiveMinimum"), Some(least), "{name}");
            assert_eq!(of(below, "maximum", "exclusiveMaximum"), Some(most), "{name}");
        }
        ParameterKind::OneOf(names) => assert_eq!(schema["enum"], json!(names), "{name}"),
        ParameterKind::Only(values) => {
            let values: Vec<Value> =
                values.iter().map(|value| serde_json::from_str(value).unwrap()).chain([Value::Null]).collect();
            assert_eq!(schema["enum"], json!(values), "{name}");
        }
        ParameterKind::Group(inner) => all_of(all, inner.iter(), schema),
    }
}

fn all_of(all: &Value, parameters: impl Iterator<Item = &'static Parameter>, schema: &Value) {
    let mut left = schema["properties"].as_object().unwrap().clone();
    for parameter in parameters {
        let own = left.remove(parameter.name).unwrap_or_else(|| panic!("openapi.json lacks {}", parameter.name));
        same(all, parameter, &own);
    }
    assert!(left.is_empty(), "openapi.json has what is in no table: {left:?}");
}

#[test]
fn openapi_has_every_endpoint_and_every_parameter() {
    let all = openapi();
    let paths = all["paths"].as_object().unwrap();
    let bodies: Vec<&String> =
        paths.iter().filter(|(_, path)| path.get("post").is_some()).map(|(name, _)| name).collect();
    let mut known: Vec<&str> = ENDPOINTS.iter().map(|endpoint| endpoint.path).chain(["/inspect/v1/{id}"]).collect();
    known.sort_unstable();
    assert_eq!(bodies, known);
    for endpoint in ENDPOINTS {
        let body = &paths[endpoint.path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        all_of(&all, endpoint.parameters(), resolved(&all, body));
    }
    // every reference leads somewhere
    for part in OPENAPI.split("\"$ref\": \"").skip(1) {
        let name = part.split('"').next().unwrap();
        assert!(all.pointer(name.strip_prefix('#').unwrap()).is_some(), "{name}");
    }
}

#[test]
fn real_answers_are_as_openapi_says() {
    let all = openapi();
    let fits = |name: &str, value: &Value| {
        assert_eq!(breaks(&all, schema(&all, name), value), None, "{name}: {value}");
    };
    let model = gpt2();
    let message = json!([{ "role": "user", "content": "a" }]);
    for (body, whole, chunk) in [
        (json!({ "prompt": "to be", "logprobs": 2, "echo": true, "n": 2 }), "Completion", "Completion"),
        (json!({ "prompt": "to be" }), "Completion", "Completion"),
        (json!({ "messages": message, "logprobs": true, "top_logprobs": 2 }), "Chat", "ChatChunk"),
        (json!({ "messages": message }), "Chat", "ChatChunk"),
    ] {
        for (stream, name) in [(false, whole), (true, chunk)] {
            let mut body = body.clone();
            body["stream"] = stream.into();
            if stream {
                body["stream_options"] = json!({ "include_usage": true });
            }
            let request = if body.get("messages").is_some() { "ChatRequest" } else { "CompletionRequest" };
            fits(request, &body);
            let read = if body.get("messages").is_some() { openai::chat } else { openai::completions };
            let ask = read(&model, body.to_string().as_bytes()).unwrap();
            let mut answer = Answer::new(model.clone(), ask.answer, "cmpl-1".into(), 1);
            let mut lines = answer.begin();
            for choice in 0..ask.requests.len() {
                let likely = |token| TokenLogProb { token, log_prob: -0.5, top: vec![(5, -0.25), (64, -1.0)] };
                let token = GeneratedToken { token: 64, text: "a".into(), choice: None, finish: None };
                let sample = Sample { text: "a".into(), tokens: vec![64], finish_reason: FinishReason::Length };
                lines.extend(answer.take(choice, EngineEvent::Prompt { cached: 1, log_probs: vec![likely(7)] }));
                lines.extend(answer.take(choice, EngineEvent::Token { token, log_prob: Some(likely(64)) }));
                lines.extend(answer.take(choice, EngineEvent::Done(sample)));
            }
            match stream {
                true => {
                    lines[..lines.len() - 1].iter().for_each(|line| fits(name, &serde_json::from_str(line).unwrap()))
                }
                false => fits(name, &serde_json::from_str(&answer.whole().unwrap()).unwrap()),
            }
        }
    }
    for (path, body, request, name) in [
        (
            "/v1/embeddings",
            json!({ "input": ["a", "b"], "limpid": { "pooling": "last" } }),
            "EmbeddingRequest",
            "Embeddings",
        ),
        ("/v1/embeddings", json!({ "input": "a", "encoding_format": "base64" }), "EmbeddingRequest", "Embeddings"),
        (
            "/tokenize",
            json!({ "prompt": "a🦀", "with_pieces": true, "return_token_strs": true }),
            "TokenizeRequest",
            "Tokens",
        ),
        ("/tokenize", json!({ "messages": message }), "TokenizeRequest", "Tokens"),
        ("/detokenize", json!({ "tokens": [1] }), "DetokenizeRequest", "Text"),
        ("/apply-template", json!({ "messages": message }), "TemplateRequest", "Templated"),
    ] {
        fits(request, &body);
        fits(name, &post(&model, path, body.to_string().as_bytes()).unwrap());
    }
    for model in [gpt2(), chars()] {
        fits("TokenizerInfo", &tokens::tokenizer_info(&model).unwrap());
        fits("Models", &tokens::models(&model));
    }
    fits("Error", &Refusal::stopping().body());
    fits("Error", &Refusal::missing_field("prompt", "a text").body());
    // and the judge finds faults
    let broken =
        |name: &str, value: Value| assert!(breaks(&all, schema(&all, name), &value).is_some(), "{name}: {value}");
    broken("CompletionRequest", json!({ "prompt": "a", "temperature": 3 }));
    broken("CompletionRequest", json!({ "prompt": "a", "temperatur": 1 }));
    broken("CompletionRequest", json!({ "prompt": [] }));
    broken("CompletionRequest", json!({}));
    broken("Text", json!({ "prompt": 1, "content": "" }));
}

#[test]
fn the_pages_list_what_there_is() {
    let (page, guide) = (page(), std::fs::read_to_string("../../docs/serve.md").unwrap());
    for (code, status, when) in CODES {
        assert!(page.contains(&format!("<code>{code}</code><td>{status}<td>{when}")), "{code}");
        assert!(
            guide.contains(&format!("| `{code}` | {status} | {when} |")),
            "docs/serve.md lacks the line\n| `{code}` | {status} | {when} |"
        );
    }
    assert_eq!(
        guide.lines().filter(|line| line.starts_with("| `") && line.matches('|').count() == 4).count(),
        CODES.len()
    );
    let (_, differs) = guide.split_once("differs from OpenAI's:").expect("the list of deviations");
    let listed: Vec<&str> = differs.lines().filter_map(|line| line.strip_prefix("* ")).collect();
    assert_eq!(listed, DEVIATIONS, "docs/serve.md");
    for endpoint in ENDPOINTS {
        assert!(page.contains(&format!("<h2>Parameters of <code>{}</code></h2>", endpoint.path)));
        for parameter in endpoint.parameters() {
            assert!(page.contains(&format!("<code>{}", parameter.name)), "{}", parameter.name);
        }
    }
    for path in openapi()["paths"].as_object().unwrap().keys() {
        assert!(page.contains(&format!(" {path}</code>")), "{path}");
    }
    assert!(
        !page.contains("<script") && !page.contains("http://") && !page.contains("https://") && !page.contains('`')
    );
}
