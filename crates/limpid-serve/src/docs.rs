//! What the server says of itself: openapi.json for programs, and `/docs` for people: endpoints, parameters, errors, and where it differs
//! from OpenAI. The page is made of the tables that the server itself goes by.

use crate::parameters::{ENDPOINTS, Parameter, ParameterKind};
use crate::refusal::CODES;
use serde_json::Value;

/// The content of `/openapi.json`, written by hand; tests hold it to the tables, the routes and real answers.
pub const OPENAPI: &str = include_str!("openapi.json");

/// The line of it that says that requests need a key.
const SECURITY: &str = "\"security\": [{\"key\": []}],";

/// `/openapi.json` of a server that has keys, or none.
pub fn openapi(keys: bool) -> String {
    if keys { OPENAPI.into() } else { OPENAPI.replacen(SECURITY, "\"security\": [],", 1) }
}

/// The content security policy of `/docs`: it has a style, and nothing else.
pub const CSP: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Where the server differs from OpenAI's, each in Markdown; docs/serve.md lists the same.
pub const DEVIATIONS: &[&str] = &[
    "`model` may be left out. Any other name than that of the served model is refused.",
    "A parameter that nobody knows is refused, and so is one of OpenAI's that limpid lacks, unless it has the value that changes nothing (`tools: []`).",
    "`user`, `metadata`, `store`, `service_tier`, `safety_identifier`, `prompt_cache_key` and `prompt_cache_retention` are accepted and have no effect.",
    "Nothing is truncated: a prompt and an answer that do not fit the context are refused. The last token of an answer needs no place, so a prompt may be as long as the context and have one token more.",
    "`max_tokens` may be 0, which scores a prompt with `echo` and `logprobs`. Left out, an answer to a conversation may have all tokens that fit.",
    "An answer depends on the model, the request and its `seed` alone, to the bit, whoever else asks. Without a seed one is drawn. `limpid.seed` of the answer is the one that was used.",
    "Choice i of an answer is sample i of `limpid generate --num-samples` with its prompt, the same settings and seed. So all choices have draws of their own, also those of equal prompts.",
    "`top_k`, `min_p`, `repetition_penalty`, `ignore_eos`, `skip_special_tokens` and `limpid` are additions.",
    "In a `prompt` the text of a special token, such as `<|endoftext|>`, is that token, as in `limpid generate`; with `limpid: {\"parse_special\": false}` it is plain text. In a message of a conversation it is always plain text, so that no message can be taken for the template. (In vLLM it is the token.) A marker of limpid's own template is refused in a message if the tokenizer writes markers as text.",
    "The text of an answer has no special tokens, as in vLLM; with `skip_special_tokens: false` it has. `logprobs` list them in any case. A `stop` text that is a special token ends the answer at that token.",
    "An empty `prompt` is the beginning of a text.",
    "`echo` gives a prompt exactly as it was sent, without a token that stands before every text of the model; of token ids it gives their text.",
    "`stop` takes up to 16 texts of 256 bytes.",
    "A request has at most 256 answers, `n` to each prompt, and they have at most 1048576 tokens and log-probabilities together: tokens of `max_tokens` and of an echo, times `logprobs` + 1.",
    "Log-probabilities are those of the model, over its whole vocabulary, before temperature, penalties, `logit_bias` and cuts. Minus infinity is -9999.",
    "Every token that was chosen is counted and has its log-probability, also the one that ended the answer and is not part of its text. `text_offset` counts characters of `text`.",
    "A token that is no whole character is called `bytes:\\xe2\\x80`. Of several tokens with the same text in `top_logprobs` all but the first have their number added: `the (id 123)`.",
    "`finish_reason` is `stop` or `length`.",
    "A message's `content` is a text, or parts of the type `text`; `null` is an assistant's message without text. `developer` is another name for `system`. Names, tools, images and audio are refused.",
    "Embeddings are the mean of the hidden states, of length 1, or what the model's `modules.json` says; `limpid: {\"pooling\": \"last\", \"normalize\": false}` changes that. (A prompt that goes before every text, and the most tokens, which sentence-transformers' files may name too, are left to the client.)",
    "`limpid: {\"receipt\": true}` adds a receipt to the answer, for a request that has one answer.",
];

/// `/docs`.
pub fn page() -> String {
    let mut page = String::from(concat!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>limpid serve</title>",
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><style>",
        ":root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}body{max-width:60rem;margin:2rem auto;padding:0 1rem}",
        "table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #8888;padding:.2rem .5rem;text-align:left;",
        "vertical-align:top}code{font-family:ui-monospace,monospace;overflow-wrap:anywhere}td:first-child code{overflow-wrap:normal}</style><h1>limpid serve</h1>",
        "<p>OpenAI's protocol, from one model. <a href=\"/openapi.json\">openapi.json</a> says the same to programs.</p>",
    ));
    page += "<h2>Endpoints</h2>";
    let description: Value = serde_json::from_str(OPENAPI).unwrap_or_default();
    let paths = description["paths"].as_object().into_iter().flatten();
    let endpoint = |(path, methods): (&String, &Value)| {
        let one = |(method, of): (&String, &Value)| {
            let summary = of["summary"].as_str().unwrap_or_default();
            [code(&format!("{} {path}", method.to_uppercase())), text(summary)].into()
        };
        methods.as_object().into_iter().flatten().map(one).collect::<Vec<Vec<String>>>()
    };
    page += &table(&["", ""], paths.flat_map(endpoint));
    for endpoint in ENDPOINTS {
        page += &format!("<h2>Parameters of <code>{}</code></h2>", endpoint.path);
        let rows = endpoint.parameters().flat_map(|parameter| match parameter.kind {
            ParameterKind::Group(inner) => {
                inner.iter().map(|inner| row(&format!("{}.{}", parameter.name, inner.name), inner)).collect()
            }
            _ => vec![row(parameter.name, parameter)],
        });
        page += &table(&["name", "value", "what it does"], rows);
    }
    page += "<h2>Where it differs from OpenAI</h2><ul>";
    for deviation in DEVIATIONS {
        page += &format!("<li>{}</li>", marked(deviation));
    }
    page += "</ul><h2>Errors</h2><p>An error is <code>{\"error\": {\"message\", \"type\", \"param\", \"code\"}}</code>; in a stream it is an event before <code>[DONE]</code>.</p>";
    let codes = CODES.iter().map(|(name, status, when)| vec![code(name), status.to_string(), text(when)]);
    page += &table(&["code", "status", "when"], codes);
    page + "</html>\n"
}

fn row(name: &str, parameter: &Parameter) -> Vec<String> {
    vec![code(name), marked(&parameter.kind.expected()), marked(parameter.about)]
}

fn table(heads: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let heads: String = heads.iter().map(|head| format!("<th>{head}")).collect();
    let rows: String = rows.map(|cells| format!("<tr><td>{}", cells.join("<td>"))).collect();
    format!("<table><tr>{heads}{rows}</table>")
}

fn text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

fn code(of: &str) -> String {
    format!("<code>{}</code>", text(of))
}

/// Text in which `this` is code.
fn marked(of: &str) -> String {
    let part = |(i, part): (usize, &str)| if i % 2 == 1 { code(part) } else { text(part) };
    of.split('`').enumerate().map(part).collect()
}
