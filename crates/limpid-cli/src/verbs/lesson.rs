//! `lesson`: what is said of transformers, measured on small runs.

use crate::options::{Interrupted, Usage};
use crate::show::{self, Progress};
use crate::signals::interrupt;
use anyhow::{Result, bail};
use limpid::Error;
use limpid::draw::table::TableOptions;
use limpid::draw::view::{View, wrap};
use limpid::train::Control;
use limpid_study::lessons::{ALL, Claim, Topic};
use std::sync::atomic::Ordering;

/// Run a short experiment that tests a common claim about transformers.
///
/// In a few seconds it prints tables, heat maps, and for each claim whether it holds on this run. Without a name: the
/// lessons, a line each.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The lesson to run
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Decides initial weights, batches and draws
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the result as JSON on stdout
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<()> {
    let Some(name) = &args.name else { return list(args.json) };
    let topic = Topic::named(name).map_err(|error| Usage(error.to_string()))?;
    let asked = interrupt()?;
    let progress = Progress::of("%", 100, false);
    let lesson = topic.run(args.seed, |event| {
        progress.reach(event.done, event.total, || event.run.clone());
        if asked.load(Ordering::Relaxed) { Control::Stop } else { Control::Continue }
    });
    progress.done();
    let lesson = match lesson {
        Err(Error::Stopped) => bail!(Interrupted("stopped before anything was found")),
        lesson => lesson?,
    };
    if args.json {
        return show::json(&lesson);
    }
    let width = show::table_width();
    let options = TableOptions { width: if width == 0 { show::PROSE } else { width }, ..TableOptions::default() };
    let paint = show::paint();
    let text = |view: View| view.text(Some(paint), &options);
    let mut parts = [lesson.title, lesson.about].map(|text| wrap(text, 0, options.width)).to_vec();
    parts.extend(lesson.views.into_iter().map(text));
    parts.push(lesson.claims.iter().map(Claim::view).map(text).collect());
    let text = parts.join("\n");
    if paint.is_coloured() { show::painted(&text) } else { show::out(&text) }
}

/// All lessons.
fn list(json: bool) -> Result<()> {
    let one = |topic: &Topic| serde_json::json!({ "name": topic.name, "title": topic.title, "about": topic.about });
    let rows: Vec<_> = ALL.iter().map(|topic| (topic.name, topic.title.to_string())).collect();
    show::found(json, &ALL.iter().map(one).collect::<Vec<_>>(), &rows)
}
