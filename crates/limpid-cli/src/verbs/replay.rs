//! `replay`: make the answer of a receipt again. What a receipt is stands in `limpid::receipt`.

use crate::models::adapted;
use crate::options::{Usage, read_settings, threads};
use crate::show;
use anyhow::{Context, Result, bail};
use limpid::Lm;
use limpid::config::parse_axis;
use limpid::ops::simd::Level;
use limpid::receipt::{Receipt, ReceiptCause, Replay, replay};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Make the answer of a receipt again, and say whether it is the same.
///
/// Exit 0: the same bytes. Exit 1: others; the first token that differs is named, and what is not as it was. The checksums of a receipt
/// find what changed by accident; they prove nothing against somebody who means to deceive.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A receipt, or several: of `limpid generate --receipt`, or an answer of `limpid serve` that has one
    #[arg(value_name = "RECEIPT.json")]
    receipt: PathBuf,
    /// The model that answered: a folder of limpid or HuggingFace, a .gguf, a .bin of llm.c
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// The LoRA adapter that was added to the model, if one was
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// Put the result on stdout as JSON
    #[arg(long)]
    json: bool,
    /// Threads [default: all cores]
    #[arg(long, short = 't', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Instruction set, as for `limpid generate` [default: the fastest this CPU has]
    #[arg(long, value_name = "SET", env = "LIMPID_SIMD", value_parser = Level::named, hide_env_values = true, hide_short_help = true, alias = "level")]
    simd: Option<Level>,
}

pub fn run(args: Args) -> Result<()> {
    let receipts = receipts(&args).with_context(|| args.receipt.display().to_string())?;
    let checkpoint = adapted(&args.model, args.adapter.as_deref())?;
    let mut lm = Lm::from(checkpoint).with_threads(threads(args.threads));
    lm = lm.with_level(args.simd.unwrap_or_else(Level::best));
    let (mut found, mut differs) = (vec![], vec![]);
    for (n, receipt) in receipts.iter().enumerate() {
        // what products multiplied is a choice and no property of a model: it is made again
        let precision = receipt.precision.split(' ').next().unwrap_or_default();
        lm = lm.with_precision(parse_axis(precision).context("precision")?);
        lm = lm.with_cache(parse_axis(&receipt.cache).context("cache")?);
        let which = if receipts.len() > 1 { format!("answer {}: ", n + 1) } else { String::new() };
        let tokens = show::plural(receipt.answer.tokens.len(), "token");
        let why = receipt.causes(&lm)?;
        let (mut result, said) = match replay(&lm, receipt) {
            Ok(Replay::Same) => {
                if !args.json {
                    show::out(&format!("{which}the same {tokens}\n"))?;
                }
                if !why.is_empty() {
                    show::say(format_args!("note: {which}the same {tokens}, though {}", causes(&why)));
                }
                (json!({ "same": true }), None)
            }
            Ok(Replay::Differs { at, theirs, ours, why }) => {
                let said = format!("{which}{}", difference(&lm, receipt, at, theirs, ours, &why));
                (json!({ "same": false, "at": at, "theirs": theirs, "ours": ours }), Some(said))
            }
            Err(error) if why.is_empty() => return Err(error.into()),
            Err(error) => {
                let said = format!("{which}this model cannot give the answer ({error}): {}", causes(&why));
                (json!({ "same": false, "error": error.to_string() }), Some(said))
            }
        };
        let why: Vec<_> = why.iter().map(|c| json!({ "what": c.what, "theirs": c.theirs, "ours": c.ours })).collect();
        result["not_as_it_was"] = why.into();
        found.push(result);
        differs.extend(said);
    }
    if args.json {
        show::json(&json!({ "answers": found }))?;
    }
    match differs.is_empty() {
        true => Ok(()),
        false => bail!("{}", differs.join("\n")),
    }
}

/// The receipts of a file: one, a list, or in an answer of the server.
fn receipts(args: &Args) -> Result<Vec<Receipt>> {
    let text = read_settings(&args.receipt)?;
    let mut value: Value = serde_json::from_str(&text).context("it is not JSON")?;
    if let Some(inside) = value.pointer_mut("/limpid/receipt") {
        value = inside.take();
    }
    let all = if let Value::Array(all) = value { all } else { vec![value] };
    if all.is_empty() {
        bail!(Usage("there is no receipt in it".into()));
    }
    let read = |value| serde_json::from_value(value).context("it is no receipt of limpid");
    all.into_iter().map(read).collect()
}

fn difference(
    lm: &Lm,
    receipt: &Receipt,
    at: usize,
    theirs: Option<u32>,
    ours: Option<u32>,
    why: &[ReceiptCause],
) -> String {
    let token = |id: Option<u32>| {
        let Some(id) = id else { return "the answer ends there".into() };
        let piece = lm.tokenizer().ok().and_then(|tokenizer| tokenizer.piece(id).ok());
        piece.map_or(format!("it is {id}"), |piece| format!("it is {id}, {piece:?}"))
    };
    let what = match (theirs, ours) {
        (None, None) => "all tokens are the same, the text or why it ended is not".into(),
        _ => format!("token {} of the answer differs: by the receipt {}, now {}", at + 1, token(theirs), token(ours)),
    };
    let because = match why.is_empty() {
        false => causes(why),
        true => format!(
            "weights, tokenizer, version, precision and cache are those of the receipt, so this is a fault of limpid {}: please report \
             it, with the receipt",
            receipt.limpid
        ),
    };
    format!("{what}: {because}")
}

/// What is not as it was, in words.
fn causes(why: &[ReceiptCause]) -> String {
    let one = |cause: &ReceiptCause| {
        let not = if cause.what == "weights" { "are not those" } else { "is not that" };
        format!("the {} {not} of the receipt ({}, now {})", cause.what, cause.theirs, cause.ours)
    };
    why.iter().map(one).collect::<Vec<_>>().join("; ")
}
