//! `inspect --intervene`: what follows from a change, beside the run without it.

use super::{Args, grid, piece};
use crate::look::{answer_ids, position};
use crate::options::Usage;
use crate::{models, show, source};
use anyhow::{Context, Result, bail};
use limpid::Lm;
use limpid::checkpoint::Checkpoint;
use limpid::config::{Config, ConfigError};
use limpid::draw::view::wrap;
use limpid::generate::{Options, Sampler};
use limpid::tokenizer::Tokenizer;
use limpid::trace::compare::{TraceComparison, compare};
use limpid::trace::predict::Prediction;
use limpid::trace::sweep::SweepMetric;
use limpid::trace::{Keep, Trace};
use serde_json::{Value, json};

/// Candidates at the last position.
const CANDIDATES: usize = 5;

/// Two runs of one prompt.
struct Runs {
    tokens: Vec<u32>,
    plain: Vec<Prediction>,
    changed: Vec<Prediction>,
    differs: TraceComparison,
    answer: Option<Answer>,
    /// What is written after the prompt without and with the change.
    written: Option<[Vec<u32>; 2]>,
}

/// The metric that --answer and --rather-than name, and what it is called.
pub fn metric_of(args: &Args, (config, tokenizer): (&Config, Option<&Tokenizer>)) -> Result<(SweepMetric, String)> {
    if !config.lm_head {
        bail!("--answer: {}", ConfigError::NoHead);
    }
    let foil = args.rather_than.as_deref().filter(|foil| *foil != "none");
    let asked = (args.answer.as_deref().unwrap_or_default(), foil);
    let (answer, foil) = answer_ids(asked, (tokenizer, config.vocab_size))?;
    let metric = SweepMetric::of(answer, foil);
    let over = foil.map_or(String::new(), |foil| format!(" over {}", piece(tokenizer, foil)));
    Ok((metric, format!("{} of {}{over}", metric.name(), piece(tokenizer, answer))))
}

/// What --answer asks for.
struct Answer {
    what: String,
    position: usize,
    without: f64,
    with: f64,
    /// What it is after the clean prompt.
    clean: Option<f64>,
}

impl Answer {
    fn new(
        args: &Args,
        (plain, tokenizer): (&Lm, Option<&Tokenizer>),
        [without, with]: [&Trace; 2],
    ) -> Result<Option<Answer>> {
        if args.answer.is_none() {
            return Ok(None);
        }
        let config = plain.config();
        let (metric, what) = metric_of(args, (config, tokenizer))?;
        let place = |run: &Trace| position(args.position, &run.batch().tokens, (config.mask, tokenizer));
        let measured = |run: &Trace| -> Result<f64> { Ok(metric.measure(place(run)? as i64, run)?) };
        let clean = args.clean.as_ref().map(|text| -> Result<f64> {
            measured(&plain.trace_ids(&plain.encode(&source::prompt(text)?)?, Keep::default())?)
        });
        let clean = clean.transpose().context("--clean")?;
        let position = place(without)?;
        let [without, with] = [measured(without)?, measured(with)?];
        Ok(Some(Answer { what, position, without, with, clean }))
    }

    /// Which part of the difference to the clean prompt comes back.
    fn recovered(&self) -> Option<f64> {
        self.clean.map(|clean| (self.with - self.without) / (clean - self.without))
    }

    fn sentence(&self) -> String {
        let Answer { what, position, without, with, .. } = self;
        let clean = match (self.clean, self.recovered()) {
            (Some(clean), Some(share)) if share.is_finite() => {
                format!("; after the clean prompt it is {clean:.4}, and {share:.2} of the difference comes back")
            }
            (Some(clean), _) => {
                format!("; after the clean prompt it is {clean:.4} too, so there is nothing to restore")
            }
            (None, _) => String::new(),
        };
        format!("The {what} at position {position} goes from {without:.4} to {with:.4}{clean}.")
    }
}

pub fn print(args: &Args, checkpoint: Checkpoint, sequences: &[Vec<u32>]) -> Result<()> {
    let [ids] = sequences else {
        bail!(Usage("--intervene shows what changes in one sequence: give one --prompt".into()));
    };
    if args.segments.is_some() {
        bail!(Usage("--intervene compares runs without segments: leave --segments out".into()));
    }
    let other = args.changes.apply(models::sharing(checkpoint, &args.machine)?)?;
    let without = other.without_interventions();
    let [a, b] = [without.trace_ids(ids, Keep::default())?, other.trace_ids(ids, Keep::default())?];
    let predicted = |trace: &Trace| -> Result<Vec<Prediction>> {
        if other.config().lm_head { Ok(trace.predictions(0..ids.len(), CANDIDATES)?) } else { Ok(vec![]) }
    };
    let [plain, changed] = [predicted(&a)?, predicted(&b)?];
    let broken = |all: &[Prediction]| all.iter().any(|one| one.top.is_empty());
    match other.resolved_steps().and_then(|steps| steps.too_large()) {
        _ if broken(&plain) => {
            bail!("the logits of the run are NaN or infinite: `limpid params --check` finds a damaged weight")
        }
        Some(error) if broken(&changed) => bail!(error),
        _ => {}
    }
    let tokenizer = other.tokenizer().ok();
    let answer = Answer::new(args, (&without, tokenizer), [&a, &b])?;
    let written = args.write.map(|n| -> Result<_> { Ok([written(&without, ids, n)?, written(&other, ids, n)?]) });
    let (written, differs) = (written.transpose()?, compare(&a, &b)?);
    let runs = Runs { tokens: ids.clone(), plain, changed, differs, answer, written };
    if args.json {
        return show::json(&runs.json(&other, tokenizer));
    }
    show::out(&runs.text(tokenizer, args.width.map_or_else(show::table_width, usize::from)))
}

/// What a model writes after these tokens, each time the likeliest.
fn written(lm: &Lm, ids: &[u32], max_tokens: usize) -> Result<Vec<u32>> {
    let options = Options { max_tokens, sampler: Sampler::GREEDY, ..Options::default() };
    Ok(lm.generate_events(ids, &options, &mut |_| true)?.tokens)
}

impl Runs {
    fn mean_losses(&self) -> Option<[f64; 2]> {
        let mean = |all: &[Prediction]| {
            let losses: Vec<f64> = all.iter().filter_map(|one| Some(f64::from(one.target.as_ref()?.loss))).collect();
            (!losses.is_empty()).then(|| losses.iter().sum::<f64>() / losses.len() as f64)
        };
        Some([mean(&self.plain)?, mean(&self.changed)?])
    }

    fn text(&self, tokenizer: Option<&Tokenizer>, width: usize) -> String {
        let word = |id| piece(tokenizer, id);
        let mut text = String::new();
        if let (Some([before, after]), Some(kl)) = (self.mean_losses(), &self.differs.kl) {
            let moved = kl.iter().filter(|kl| **kl > 0.0).count();
            let likeliest = self.plain.iter().zip(&self.changed).filter(|(a, b)| a.top[0].id != b.top[0].id).count();
            text += &wrap(
                &format!(
                    "The loss goes from {before:.4} to {after:.4} nats a token. Of {} the prediction changes at \
                     {moved}, and the likeliest token at {likeliest}.",
                    show::plural(kl.len(), "position"),
                ),
                0,
                width,
            );
        }
        text += &self.answer.as_ref().map_or(String::new(), |answer| wrap(&answer.sentence(), 0, width));
        text += "\n";
        if let Some(kl) = &self.differs.kl {
            let rows = self.plain.iter().zip(&self.changed).enumerate().map(|(at, (a, b))| {
                let loss = |one: &Prediction| one.target.as_ref().map_or(String::new(), |t| format!("{:.3}", t.loss));
                let best = |one: &Prediction| format!("{} {:.3}", word(one.top[0].id), one.top[0].p);
                vec![
                    at.to_string(),
                    word(self.tokens[at]),
                    format!("{:.4}", kl[at]),
                    best(a),
                    best(b),
                    loss(a),
                    loss(b),
                ]
            });
            let headers = ["position", "token", "KL", "likeliest next", "changed to", "loss of the next", "changed to"];
            text += &grid(String::new(), &headers, rows).whole(width);
            let last = self.plain.len() - 1;
            text += &format!("\nAfter {} (position {last}):\n", word(self.tokens[last]));
            let listed = |all: &Prediction| {
                let each = all.top.iter().map(|next| format!("{} {:.3}", word(next.id), next.p));
                each.collect::<Vec<_>>().join(", ")
            };
            text += &wrap(&format!("without: {}", listed(&self.plain[last])), 2, width);
            text += &wrap(&format!("with:    {}", listed(&self.changed[last])), 2, width);
        }
        if let Some(stream) = &self.differs.stream {
            let title = "How much the residual stream changed, |with - without| / |without|:";
            text += &format!("\n{}", wrap(title, 0, width));
            let headers: Vec<String> = (0..stream.len()).map(stage).collect();
            let headers: Vec<&str> = ["token"].into_iter().chain(headers.iter().map(String::as_str)).collect();
            let row = |at: usize| {
                let cells = stream.iter().map(|stage| match stage[at] {
                    0.0 => "0".to_string(),
                    change => format!("{change:.3}"),
                });
                [word(self.tokens[at])].into_iter().chain(cells).collect()
            };
            text += &grid(String::new(), &headers, (0..self.tokens.len()).map(row)).whole(width);
        }
        if let Some(both) = &self.written {
            let said = |ids: &[u32]| match tokenizer.map(|tokenizer| tokenizer.decode(ids)) {
                Some(Ok(text)) => format!("{text:?}"),
                _ => ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
            };
            let shared = both[0].iter().zip(&both[1]).take_while(|(a, b)| a == b).count();
            let differs = if both[0] == both[1] { "the same".into() } else { format!("equal up to token {shared}") };
            text += &format!("\nWritten after the prompt, {differs}:\n");
            text += &wrap(&format!("without: {}", said(&both[0])), 2, width);
            text += &wrap(&format!("with:    {}", said(&both[1])), 2, width);
        }
        text + "\n"
            + &wrap(
                "KL and losses are in nats. --tensor, --table, --why and --plot show the changed run itself; `limpid \
                 generate --intervene` writes with it.",
                0,
                width,
            )
    }

    fn json(&self, lm: &Lm, tokenizer: Option<&Tokenizer>) -> Value {
        let next = |one: &Prediction| {
            let each =
                one.top.iter().map(|next| json!({ "id": next.id, "text": piece(tokenizer, next.id), "p": next.p }));
            json!({ "top": each.collect::<Vec<_>>(), "loss": one.target.as_ref().map(|target| target.loss) })
        };
        let rows = self.plain.iter().zip(&self.changed).enumerate().map(|(at, (a, b))| {
            let kl = self.differs.kl.as_ref().map(|kl| kl[at]);
            json!({ "position": at, "token": self.tokens[at], "kl": kl, "without": next(a), "with": next(b) })
        });
        json!({
            "interventions": lm.interventions(),
            "loss": self.mean_losses().map(|[before, after]| json!({ "without": before, "with": after })),
            "positions": rows.collect::<Vec<_>>(),
            "stream": self.differs.stream,
            "answer": self.answer.as_ref().map(|one| json!({
                "metric": one.what, "position": one.position, "without": one.without, "with": one.with,
                "clean": one.clean,
                "recovered": one.recovered(),
            })),
            "written": self.written.as_ref().map(|[without, with]| json!({ "without": without, "with": with })),
        })
    }
}

/// A stage of the stream.
pub fn stage(n: usize) -> String {
    n.checked_sub(1).map_or("embedded".into(), |block| format!("block {block}"))
}
