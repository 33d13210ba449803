//! openapi.json, `/docs` and docs/serve.md say what the tables and real answers say.

use crate::served::{chars, gpt2, post};
use limpid::engine::{EngineEvent, TokenLogProb};
use limpid::generate::{FinishReason, GeneratedToken, Sample};
use limpid_serve::answer::Answer;
use limpid_serve::docs::{guide, page};
use limpid_serve::openapi::document;
use limpid_serve::parameters::REQUEST_BODIES;
use limpid_serve::refusal::{CODES, Refusal};
use limpid_serve::{openai, tokens};
use serde_json::{Value, json};

fn openapi() -> Value {
    serde_json::from_str(document(true)).unwrap()
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
            "type" => !types(says).iter().any(|name| match *name {
                "string" => value.is_string(),
                "boolean" => value.is_boolean(),
                "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|v| v.fract() == 0.0),
                "number" => value.is_number(),
                "array" => value.is_array(),
                "object" => value.is_object(),
                "null" => value.is_null(),
                other => panic!("{other}"),
            }),
            "enum" => !says.as_array().unwrap().contains(value),
            "anyOf" => says.as_array().unwrap().iter().all(|one| breaks(all, one, value).is_some()),
            "oneOf" => says.as_array().unwrap().iter().filter(|one| breaks(all, one, value).is_none()).count() != 1,
            "minimum" => value.as_f64().is_some_and(|v| Some(v) < number(word)),
            "maximum" => value.as_f64().is_some_and(|v| Some(v) > number(word)),
            "exclusiveMinimum" => value.as_f64().is_some_and(|v| Some(v) <= number(word)),
            "exclusiveMaximum" => value.as_f64().is_some_and(|v| Some(v) >= number(word)),
            "propertyNames" => {
                assert_eq!(*says, json!({ "pattern": "^(0|[1-9][0-9]*)$" }));
                let number = |name: &String| name.parse::<u128>().is_ok_and(|id| id.to_string() == *name);
                !value.as_object().is_none_or(|names| names.keys().all(number))
            }
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
                value.is_object() && says.as_array().unwrap().iter().any(|name| missing(&name))
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

/// The types of a schema.
fn types(says: &Value) -> Vec<&str> {
    says.as_array().map_or(vec![says], |all| all.iter().collect()).into_iter().filter_map(Value::as_str).collect()
}

fn schema<'a>(all: &'a Value, name: &str) -> &'a Value {
    all.pointer(&format!("/components/schemas/{name}")).unwrap_or_else(|| panic!("{name}"))
}

#[test]
fn every_body_is_described_and_every_reference_leads_somewhere() {
    let all = openapi();
    let posts = all["paths"].as_object().unwrap().iter().filter(|(_, path)| path.get("post").is_some());
    let described: Vec<&String> = posts.clone().map(|(name, _)| name).collect();
    let mut known: Vec<&str> = REQUEST_BODIES.iter().map(|body| body.path).chain(["/inspect/v1/{id}"]).collect();
    known.sort_unstable();
    assert_eq!(described, known);
    for (path, methods) in posts {
        let body = &methods["post"]["requestBody"]["content"]["application/json"]["schema"];
        assert!(resolved(&all, body)["properties"].is_object(), "{path}");
    }
    let references: Vec<&str> = document(true).split("\"$ref\": \"").skip(1).collect();
    assert!(references.len() > 40, "{}", references.len());
    for part in references {
        let name = part.split('"').next().unwrap();
        assert!(all.pointer(name.strip_prefix('#').unwrap()).is_some(), "{name}");
    }
}

/// Values that may be at the edge of something, and what the schema itself has at its edges.
fn candidates(all: &Value, schema: &Value) -> Vec<Value> {
    let schema = resolved(all, schema);
    let mut found = vec![
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(0.5),
        json!(2.0),
        json!(1e300),
        json!(""),
        json!("x"),
        json!("a".repeat(257)),
        json!([]),
        json!([1]),
        json!([-1]),
        json!([1.0, 2]),
        json!([0.5]),
        json!(["a"]),
        json!([""]),
        json!(["a", 1]),
        json!([[1], [2]]),
        json!([[]]),
        json!([[1], "a"]),
        json!(vec!["a"; 16]),
        json!(vec!["a"; 17]),
        json!({}),
        json!({ "1": 1 }),
        json!({ "x": 1 }),
        json!({ "01": 1 }),
        json!({ "1": 101 }),
        json!({ "1": null }),
        json!([{ "role": "user", "content": "a" }]),
        json!([{ "role": "user",
        "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b", "c": null }] }]),
        json!([{ "role": "user", "content": [{ "type": "text", "text": "a", "c": 1 }] }]),
        json!([{ "role": "user", "content": [{ "type": "image" }] }]),
        json!([{ "role": "user", "content": null }]),
        json!([{ "role": "user" }]),
        json!([{ "role": "user", "content": "a" }, { "role": "assistant" }, { "role": "user", "content": "b" }]),
        json!([{ "role": "user", "content": "a", "name": "b" }]),
        json!([{ "role": "user", "content": "a", "name": "", "tool_calls": [], "images": {}, "audio": null }]),
        json!([{ "role": "user", "content": "a", "other": null }]),
        json!([{ "role": "tool", "content": "a" }]),
        json!([{ "ablate": "hook_embed" }]),
        json!({ "do": [{ "scale": "hook_embed", "by": 2 }], "name": "x", "limpid_interventions": 1 }),
        json!({ "do": [{ "scale": "hook_embed", "by": 2 }], "name": 7 }),
        json!({ "do": [{ "scale": "hook_embed", "by": 2 }], "limpid_interventions": 2 }),
        json!(vec![json!({ "ablate": "hook_embed" }); 256]),
        json!(vec![json!({ "ablate": "hook_embed" }); 257]),
    ];
    for (word, value) in schema.as_object().into_iter().flatten() {
        match (word.as_str(), value.as_f64()) {
            ("enum", _) => found.extend(value.as_array().unwrap().iter().cloned()),
            ("minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum", Some(end)) => {
                found.push(value.clone());
                let whole = value.as_i64().map(|end| [end.saturating_sub(1), end.saturating_add(1)]);
                found.extend(whole.into_iter().flatten().map(Value::from));
                // beyond 2^53 what is written with a fraction is no integer
                found.extend([end.next_down(), end.next_up()].into_iter().filter(|v| v.abs() < 9e15).map(Value::from));
            }
            _ => {}
        }
    }
    found
}

/// Every property of every request: what the schema refuses is refused, and what it permits is taken, or refused for a
/// reason that no schema can say: another property, or the model.
#[test]
fn the_schema_and_the_reader_agree() {
    let (all, model) = (openapi(), gpt2());
    let message = json!([{ "role": "user", "content": "a" }]);
    for (path, name, needed) in [
        ("/v1/completions", "CompletionRequest", json!({ "prompt": "a", "max_tokens": 4 })),
        ("/v1/chat/completions", "ChatRequest", json!({ "messages": message, "max_tokens": 4, "logprobs": true })),
        ("/v1/embeddings", "EmbeddingRequest", json!({ "input": "a" })),
        ("/tokenize", "TokenizeRequest", json!({ "prompt": "a" })),
        ("/detokenize", "DetokenizeRequest", json!({ "tokens": [1] })),
        ("/apply-template", "TemplateRequest", json!({ "messages": message })),
    ] {
        let request = schema(&all, name);
        let mut properties: Vec<(Option<&str>, &str, &Value)> = vec![];
        for (name, of) in request["properties"].as_object().unwrap() {
            properties.push((None, name, of));
            let inner = of["properties"].as_object().into_iter().flatten();
            properties.extend(inner.map(|(inner, of)| (Some(name.as_str()), inner.as_str(), of)));
        }
        for (group, property, of) in properties {
            let mut taken = 0;
            for value in candidates(&all, of) {
                let mut body = needed.clone();
                match group {
                    Some(group) => body[group] = json!({ property: value }),
                    None => body[property] = value.clone(),
                }
                if group == Some("stream_options") || property == "stream_options" {
                    body["stream"] = true.into();
                }
                if property == "max_completion_tokens" {
                    body.as_object_mut().unwrap().remove("max_tokens");
                }
                let what = format!("{path} {group:?} {property}: {:.200}", body.to_string());
                let done = post(&model, path, body.to_string().as_bytes());
                taken += usize::from(done.is_ok());
                match (breaks(&all, request, &body), done) {
                    (Some(_), Err(refusal)) => assert!((400..500).contains(&refusal.status), "{what}: {refusal}"),
                    (Some(broken), Ok(_)) => panic!("{what} is taken, against the schema: {broken}"),
                    (None, Ok(_)) => {}
                    (None, Err(refusal)) => {
                        let reason = match refusal.code {
                            // the model's
                            "context_length_exceeded" | "token_out_of_range" | "model_not_found" => true,
                            "unsupported_parameter" => ["best_of", "dimensions"].contains(&property),
                            // bytes of a text, another property, and what the library finds in a text
                            "invalid_value" => {
                                ["stop", "logprobs", "messages", "n", "receipt", "interventions"].contains(&property)
                                    || ["content", "prompt"].contains(&property) && path == "/tokenize"
                            }
                            _ => false,
                        };
                        assert!(reason, "{what} is refused, and the schema permits it: {refusal}");
                    }
                }
            }
            assert!(taken > 0, "nothing fits {path} {group:?} {property}");
        }
        // nothing else, and nothing that is needed left out
        let mut more = needed.clone();
        more["nothing"] = json!(null);
        for body in [more, json!({})] {
            assert!(breaks(&all, request, &body).is_some(), "{path} {body}");
            assert!(post(&model, path, body.to_string().as_bytes()).is_err(), "{path} {body}");
        }
    }
    let [free, locked] = [false, true].map(|keys| serde_json::from_str::<Value>(document(keys)).unwrap());
    assert_eq!(
        (&free["security"], &locked["security"]),
        (&json!([]), &json!([{ "key": [] }])),
        "a key, where there is one"
    );
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
            if stream {
                lines[..lines.len() - 1].iter().for_each(|line| fits(name, &serde_json::from_str(line).unwrap()))
            } else {
                fits(name, &serde_json::from_str(&answer.whole().unwrap()).unwrap())
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
        fits("Models", &tokens::models(&model, false));
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
fn the_page_lists_what_there_is() {
    let page = page();
    for (code, status, when) in CODES {
        assert!(page.contains(&format!("<code>{code}</code><td>{status}<td>{when}")), "{code}");
    }
    for body in REQUEST_BODIES {
        assert!(page.contains(&format!("<h2>Parameters of <code>{}</code></h2>", body.path)));
        for parameter in body.parameters() {
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

/// `WRITE_DOCS=1 cargo test -p limpid-serve --test server` writes the sections anew.
#[test]
fn the_guide_has_the_sections_that_the_server_is_made_of() {
    let path = "../../docs/serve.md";
    let mut text = std::fs::read_to_string(path).unwrap();
    for (name, section) in guide() {
        let [begin, end] = ["begin", "end"].map(|side| format!("<!-- {side} {name} -->\n"));
        let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("{path} lacks {begin}"));
        let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{path} lacks {end}"));
        text = format!("{before}{begin}{section}{end}{after}");
    }
    if std::env::var_os("WRITE_DOCS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let stale = std::fs::read_to_string(path).unwrap() != text;
    assert!(!stale, "{path} is stale: run `WRITE_DOCS=1 cargo test -p limpid-serve --test server`");
}
