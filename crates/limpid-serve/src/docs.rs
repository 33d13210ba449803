//! What the server says of itself to people: `/docs`, and three sections of docs/serve.md. Endpoints, parameters and
//! errors come from the tables that the server itself goes by; the differences from OpenAI are listed here.

use crate::parameters::{Parameter, ParameterKind, REQUEST_BODIES, RequestBody};
use crate::refusal::CODES;
use crate::routes::ROUTES;
use limpid::draw::view::wrap;

/// The content security policy of `/docs`: it has a style, and nothing else.
pub const CSP: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Where the server differs from OpenAI's, each in Markdown.
pub const DIFFERENCES: &[&str] = &[
    "`model` may be left out. Any name but that of the served model is refused.",
    "Unknown parameters are errors. So are parameters of OpenAI's that limpid lacks, unless they have the value that \
     changes nothing (`tools: []`).",
    "`user`, `metadata`, `store`, `service_tier`, `safety_identifier`, `prompt_cache_key` and \
     `prompt_cache_retention` are accepted and have no effect.",
    "Nothing is truncated. If a prompt and its answer do not fit the context, the request is refused. The last token \
     of an answer takes no place in the context, so prompt and answer together may have one token more than the \
     context.",
    "`max_tokens` may be 0: with `echo` and `logprobs`, that scores a prompt. If it is left out, the answer to a \
     conversation may use all of the context that is left.",
    "An answer depends only on the model, the request and its `seed`, to the bit, whoever else asks. If a request has \
     no seed, the server draws one. `limpid.seed` of the answer is the seed that was used.",
    "Choice i of an answer is sample i of `limpid generate --num-samples` with the same prompt, settings and seed. \
     Every choice has draws of its own, even if prompts are equal.",
    "`top_k`, `min_p`, `repetition_penalty`, `ignore_eos`, `skip_special_tokens` and `limpid` are additions.",
    "In a `prompt`, the text of a special token, such as `<|endoftext|>`, is that token, as in `limpid generate`; \
     with `limpid: {\"parse_special\": false}` it is plain text. In a message of a conversation it is always plain \
     text (in vLLM it is the token), so that no message can pass for part of the template. If the tokenizer writes \
     the markers of limpid's own template as text, a message that contains one is refused.",
    "The text of an answer leaves special tokens out, as in vLLM; `skip_special_tokens: false` keeps them. `logprobs` \
     always lists them. A `stop` string that is a special token ends the answer at that token.",
    "An empty `prompt` is the beginning of a text.",
    "`echo` returns a prompt exactly as it was sent, without the token that the model puts before every text. For \
     token ids it returns their text.",
    "`stop` takes up to 16 strings of 256 bytes.",
    "A request has at most 256 answers (prompts times `n`), and at most 1048576 tokens and log-probabilities in \
     total: `max_tokens` plus the echo, times `logprobs` + 1.",
    "Log-probabilities are the model's own, over its whole vocabulary, before temperature, penalties, `logit_bias` \
     and cuts. Minus infinity is -9999.",
    "Every chosen token is counted and has a log-probability, including the token that ended the answer, which is not \
     part of its text. `text_offset` counts characters of `text`.",
    "A token that is not a whole character is called `bytes:\\xe2\\x80`. If several tokens in `top_logprobs` have the \
     same text, all but the first have their id appended: `the (id 123)`.",
    "`finish_reason` is `stop` or `length`.",
    "A message's `content` is a string or an array of parts of type `text`; `null` stands for an assistant's message \
     without text. `developer` is another name for `system`. Names, tools, images and audio are refused.",
    "An embedding is the mean of the hidden states, scaled to length 1, or whatever the model's `modules.json` says; \
     `limpid: {\"pooling\": \"last\", \"normalize\": false}` overrides both. The prompt and the token limit that \
     sentence-transformers' files may also name are left to the client.",
    "`limpid: {\"receipt\": true}` adds a receipt to the answer, if the request has a single answer.",
    "`limpid: {\"interventions\": [...]}` changes what the model computes for this request, if the server was started \
     with `--allow-interventions`. A request has at most 4096 steps times answers.",
];

/// `/docs`.
pub fn page() -> String {
    let mut page = String::from(concat!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>limpid serve</title>",
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><style>",
        // the colours and the measures of the page
        ":root{color-scheme:light \
         dark;--paper:light-dark(#fbfbf9,#16181b);--ink:light-dark(#1c1e21,#e6e7e9);--dim:light-dark(#5d646c,#a2a9b2);",
        "--line:light-dark(#e0e0da,#34383e);--accent:light-dark(#1f5fb4,#7db4f7);",
        "font:16px/1.5 system-ui,-apple-system,\"Segoe UI\",Roboto,\"Helvetica Neue\",Arial,sans-serif}",
        "body{max-width:66rem;margin:0 auto;padding:1.1rem \
         clamp(1rem,4vw,2.5rem);background:var(--paper);color:var(--ink)}",
        "h1{font-size:1.05rem;padding-bottom:.8rem;border-bottom:1px solid \
         var(--line)}h2{font-size:1.1rem;margin:2rem 0 .6rem}a{color:var(--accent)}",
        "table{border-collapse:collapse;width:100%;font-size:.9375rem}td,th{border-bottom:1px solid \
         var(--line);padding:.25rem .9rem .25rem 0;text-align:left;",
        "vertical-align:top}th{color:var(--dim);font-weight:400}code{font-family:ui-monospace,\"Cascadia \
         Mono\",Menlo,Consolas,monospace;font-size:.9em;",
        "overflow-wrap:anywhere}td:first-child code{overflow-wrap:normal}</style><h1>limpid serve</h1><p><a \
         href=\"/\">The page</a></p>",
        "<p>OpenAI's protocol, from one model. <a href=\"/openapi.json\">openapi.json</a> describes the same for \
         programs.</p>",
        "<h2>Endpoints</h2>",
    ));
    let routes = ROUTES.iter().map(|route| [format!("`{} {}`", route.method, route.path), route.about.into()].into());
    page += &html_table(&["", ""], routes);
    for body in REQUEST_BODIES {
        page += &format!("<h2>Parameters of <code>{}</code></h2>", body.path);
        page += &html_table(&PARAMETER, parameter_rows(&body).into_iter());
    }
    page += "<h2>Differences from OpenAI</h2><ul>";
    for difference in DIFFERENCES {
        page += &format!("<li>{}", html(difference));
    }
    page += "</ul><h2>Errors</h2><p>An error is <code>{\"error\": {\"message\", \"type\", \"param\", \
             \"code\"}}</code>; in a stream it is an event before <code>[DONE]</code>.</p>";
    page += &html_table(&ERROR, error_rows());
    page + "</html>\n"
}

/// The sections of docs/serve.md that are made from the server's tables: the name of each, and its Markdown.
pub fn guide() -> [(&'static str, String); 3] {
    let differences: String = DIFFERENCES.iter().map(|difference| wrap(&format!("* {difference}"), 2, 120)).collect();
    let parameters = REQUEST_BODIES.map(|body| {
        format!("### `POST {}`\n\n{}", body.path, markdown_table(&PARAMETER, parameter_rows(&body).into_iter()))
    });
    let errors = markdown_table(&ERROR, error_rows());
    [("differences", differences), ("parameters", parameters.join("\n")), ("errors", errors)]
}

const PARAMETER: [&str; 4] = ["name", "value", "default", "what it does"];
const ERROR: [&str; 3] = ["code", "status", "when"];

/// A row for each parameter, and for each parameter of a group.
fn parameter_rows(body: &RequestBody) -> Vec<Vec<String>> {
    let mut rows = vec![];
    for parameter in body.parameters() {
        match parameter.kind {
            ParameterKind::Group(inner) => {
                rows.extend(inner.iter().map(|inner| row(&format!("{}.{}", parameter.name, inner.name), inner)));
            }
            _ => rows.push(row(parameter.name, parameter)),
        }
    }
    rows
}

fn row(name: &str, parameter: &Parameter) -> Vec<String> {
    let default = if parameter.required { "required" } else { parameter.default.unwrap_or_default() };
    vec![format!("`{name}`"), parameter.kind.expected(), default.into(), parameter.about.into()]
}

fn error_rows() -> impl Iterator<Item = Vec<String>> {
    CODES.iter().map(|(code, status, when)| vec![format!("`{code}`"), status.to_string(), when.to_string()])
}

fn html_table(heads: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let heads: String = heads.iter().map(|head| format!("<th>{head}")).collect();
    let row = |cells: Vec<String>| cells.iter().map(|cell| format!("<td>{}", html(cell))).collect::<String>();
    let rows: String = rows.map(|cells| format!("<tr>{}", row(cells))).collect();
    format!("<table><tr>{heads}{rows}</table>")
}

fn markdown_table(heads: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | ").replace("|  |", "| |"));
    let head = line(heads.iter().map(ToString::to_string).collect()) + &format!("|{}\n", "---|".repeat(heads.len()));
    head + &rows.map(line).collect::<String>()
}

/// Text as HTML; what stands between backticks is code.
fn html(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let part = |(i, part): (usize, &str)| if i % 2 == 1 { format!("<code>{part}</code>") } else { part.into() };
    text.split('`').enumerate().map(part).collect()
}
