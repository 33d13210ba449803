//! `replay`: make the answer of a receipt again. What a receipt is stands in `limpid::receipt`.

use crate::models::WeightOptions;
use crate::options::{Usage, read_settings, threads};
use crate::show;
use anyhow::{Context, Result, bail};
use limpid::config::parse_axis;
use limpid::generate::FinishReason;
use limpid::numeric::simd::Level;
use limpid::receipt::{Receipt, ReceiptCause, Replay, VERSION, replay};
use limpid::{Lm, Machine};
use serde_json::{Value, json};
use std::path::Path;

/// A receipt, and the answer that it lies in, if it does in one.
struct Answered {
    receipt: Receipt,
    answer: Option<Value>,
}

/// Recompute an answer from its receipt and verify that every byte matches.
///
/// Exit 0: the same bytes. Exit 1: other bytes; it names the first token that differs, and what has changed. For an
/// answer of the server the whole file is compared: its text, why it ended, how many tokens it counts. The checksums of
/// a model in a receipt find what changed by accident; they prove nothing against somebody who means to deceive.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    weights: WeightOptions,
    /// A file with a receipt or a list of them: of `limpid generate --receipt`, or an answer of `limpid serve` that has
    /// one
    #[arg(value_name = "RECEIPT.json")]
    receipt: Option<String>,
    /// Print the result as JSON on stdout
    #[arg(long)]
    json: bool,
    /// Skip the checksum of the weights
    #[arg(long, hide_short_help = true)]
    no_verify: bool,
    /// Threads [default: all cores]
    #[arg(long, short = 't', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Instruction set, as for `limpid generate` [default: the fastest this CPU has]
    #[arg(
        long, value_name = "SET", env = "LIMPID_SIMD", value_parser = Level::named, hide_env_values = true,
        hide_short_help = true, alias = "level"
    )]
    simd: Option<Level>,
}

pub fn run(mut args: Args) -> Result<()> {
    let file = args.weights.then(args.receipt.take(), "replay", "RECEIPT.json")?;
    let text = read_settings(Path::new(&file))?;
    let receipts = receipts(&text).context(file)?;
    let checkpoint = args.weights.open(!args.no_verify)?;
    let machine = Machine { level: args.simd.unwrap_or_else(Level::best), ..Machine::cpu(threads(args.threads)) };
    let mut lm = Lm::from(checkpoint);
    let (mut found, mut differs) = (vec![], vec![]);
    for (n, Answered { receipt, answer }) in receipts.iter().enumerate() {
        // what products multiplied is a choice and no property of a model: it is made again
        let precision = receipt.precision.split(' ').next().unwrap_or_default();
        let precision = parse_axis(precision).context("precision")?;
        let cache = Machine::cache_element(parse_axis(&receipt.cache).context("cache")?)?;
        lm = lm.with_machine(Machine { precision, cache, ..machine.clone() });
        let which = if receipts.len() > 1 { format!("answer {}: ", n + 1) } else { String::new() };
        let stopped = receipt.answer.finish_reason == FinishReason::Cancelled;
        if stopped && receipt.answer.tokens.is_empty() {
            bail!("{which}it was stopped before its first token: there is nothing to compare");
        }
        let tokens = show::plural(receipt.answer.tokens.len(), "token");
        let tokens = if stopped { format!("{tokens}, and there it was stopped") } else { tokens };
        let why = receipt.causes(&lm)?;
        if let Some(what) = answer.as_ref().and_then(|answer| beside(&lm, receipt, answer)) {
            found.push(json!({ "same": false, "error": what }));
            differs.push(format!("{which}{what}"));
            continue;
        }
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
                let said = format!("{which}{}", difference(&lm, at, theirs, ours, &why));
                (json!({ "same": false, "at": at, "theirs": theirs, "ours": ours }), Some(said))
            }
            Err(error) if why.is_empty() => return Err(error.into()),
            Err(error) => {
                let said = format!("{which}{}; it cannot give the answer: {error}", causes(&why));
                (json!({ "same": false, "error": error.to_string() }), Some(said))
            }
        };
        result["not_as_it_was"] = json!(why);
        found.push(result);
        differs.extend(said);
    }
    if args.json {
        show::json(&json!({ "answers": found }))?;
    }
    if !differs.is_empty() {
        bail!("{}", differs.join("\n"));
    }
    Ok(())
}

/// The receipts of a file: one, a list, or in an answer of the server.
fn receipts(text: &str) -> Result<Vec<Answered>> {
    let mut value: Value = serde_json::from_str(text).context("it is not JSON")?;
    if let Some(inside) = value.pointer_mut("/limpid/receipt") {
        let receipt = receipt(inside.take())?;
        return Ok(vec![Answered { receipt, answer: Some(value) }]);
    }
    let all = if let Value::Array(all) = value { all } else { vec![value] };
    if all.is_empty() {
        bail!(Usage("there is no receipt in it".into()));
    }
    all.into_iter().map(|one| Ok(Answered { receipt: receipt(one)?, answer: None })).collect()
}

/// Bytes of an answer up to which every place is tried where the text behind an unknown prompt may begin.
const LONG: usize = 1 << 15;

/// What an answer of the server says otherwise than the receipt in it, if it does.
fn beside(lm: &Lm, receipt: &Receipt, answer: &Value) -> Option<String> {
    let Receipt { request, answer: own, .. } = receipt;
    let differs =
        |what: &str, is: String| Some(format!("{what} is not what the receipt says: the file was changed ({is})"));
    // what is not there cannot say anything else
    let choices = answer["choices"].as_array()?;
    let [choice] = &choices[..] else {
        return differs("the number of answers", format!("there are {}, and a receipt is of one", choices.len()));
    };
    let text = choice["text"].as_str().or_else(|| choice.pointer("/message/content")?.as_str());
    // where the prompt was asked for too, the answer is what follows it
    let tokenizer = lm.tokenizer().ok();
    let decoded = tokenizer.and_then(|tokenizer| tokenizer.decode(&request.prompt).ok()).unwrap_or_default();
    let encoded = |text: &str| tokenizer.and_then(|tokenizer| tokenizer.encode(text).ok());
    let is = |text: &str| {
        let prompt = |at: usize| decoded.ends_with(&text[..at]);
        let echoed = |at| prompt(at) || encoded(&text[..at]).is_some_and(|ids| request.prompt.ends_with(&ids));
        let from =
            |at: &usize| text.is_char_boundary(*at) && (text.len() <= LONG || prompt(*at)) && own.is_text(&text[*at..]);
        (0..=text.len()).filter(from).any(echoed)
    };
    if !text.is_some_and(is) {
        return differs("the text of the answer", text.map_or("there is none".into(), |text| format!("{text:?}")));
    }
    let ended = if own.finish_reason == FinishReason::Length { "length" } else { "stop" };
    let finish = &choice["finish_reason"];
    if !finish.is_null() && finish != ended {
        return differs("finish_reason", format!("{finish}, and it was {ended:?}"));
    }
    let end = usize::from(own.finish_reason == FinishReason::EndOfText);
    let counts = [("prompt_tokens", request.prompt.len()), ("completion_tokens", own.tokens.len() + end)];
    let wrong = counts.iter().find(|(name, n)| answer["usage"].get(name).is_some_and(|is| *is != json!(n)));
    wrong.and_then(|(name, n)| differs(&format!("usage.{name}"), format!("{}, and it was {n}", answer["usage"][name])))
}

/// A receipt, and nothing beside it.
fn receipt(value: Value) -> Result<Receipt> {
    let receipt: Receipt = serde_json::from_value(value.clone()).context("it is not a receipt of limpid")?;
    let known = serde_json::to_value(&receipt)?;
    match value.as_object().into_iter().flatten().find(|(key, _)| known.get(key).is_none()) {
        None => Ok(receipt),
        Some((key, _)) => bail!("it is not a receipt of limpid: a receipt has no {key:?}"),
    }
}

fn difference(lm: &Lm, at: usize, theirs: Option<u32>, ours: Option<u32>, why: &[ReceiptCause]) -> String {
    // by another tokenizer these ids are other texts
    let own = why.iter().all(|cause| cause.what != "tokenizer");
    let token = |id: Option<u32>| {
        let Some(id) = id else { return "the answer ends there".into() };
        let piece = lm.tokenizer().ok().filter(|_| own).and_then(|tokenizer| tokenizer.piece(id).ok());
        piece.map_or(format!("it is {id}"), |piece| format!("it is {id}, {piece:?}"))
    };
    let what = match (theirs, ours) {
        (None, None) => "all tokens are the same, the text or why it ended is not".into(),
        _ => format!("token {} of the answer differs: by the receipt {}, now {}", at + 1, token(theirs), token(ours)),
    };
    if !why.is_empty() {
        return format!("{}: {what}", causes(why));
    }
    format!(
        "{what}: weights, tokenizer, version, precision and cache are those of the receipt, so either the receipt was \
         changed, or this is a fault of limpid {VERSION}: then please report it, with the receipt"
    )
}

/// What is not as it was, in words.
fn causes(why: &[ReceiptCause]) -> String {
    let one = |cause: &ReceiptCause| {
        let not = if cause.what == "weights" { "are not those" } else { "is not that" };
        format!("the {} {not} of the receipt ({}, now {})", cause.what, cause.theirs.escape_debug(), cause.ours)
    };
    let all = why.iter().map(one).collect::<Vec<_>>().join("; ");
    let other = why.iter().any(|cause| ["weights", "configuration", "tokenizer"].contains(&cause.what));
    if other { format!("this is another model: {all}") } else { all }
}
