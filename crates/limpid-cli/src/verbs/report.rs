//! `report`: the results of runs, as a page of curves and a table.

use crate::models::newest_folder;
use crate::options::Usage;
use crate::outputs::{Force, Output, OutputKind};
use crate::show;
use anyhow::{Result, bail};
use limpid::train::RECENT;
use limpid_base::units::{count, duration};
use limpid_report as report;
use limpid_report::records::{page, read, seen};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Show the results of runs, finished or not: a page with their curves, which any browser opens, and a table.
///
/// For several runs, the page draws the curves over each other and lists the settings in which they differ. Folders
/// without a step are skipped and named.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example: limpid report runs/*")]
pub struct Args {
    /// Folders of runs [default: the newest under runs/]
    #[arg(value_name = "DIR")]
    runs: Vec<PathBuf>,
    /// File for the page [default: report.html in the run's folder; for several runs, in the current folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    /// Print the results as JSON on stdout
    #[arg(long)]
    json: bool,
}

pub fn run(mut args: Args) -> Result<()> {
    if args.runs.is_empty() {
        let Some(newest) = newest_folder(&["metrics.jsonl"]) else {
            bail!(Usage("no run is given, and runs/ has none: give its folder, or train with `limpid train`".into()));
        };
        show::say(format_args!("{} is the newest run; name folders to take others", newest.display()));
        args.runs.push(newest);
    }
    let out = args.out.unwrap_or_else(|| match &args.runs[..] {
        [run] => run.join("report.html"),
        _ => "report.html".into(),
    });
    let force = Some(args.force.0);
    Output { flag: "--out", path: &out, kind: OutputKind::Report, force, inputs: &args.runs }.check()?;
    // of several, those without a step (never begun, or no run's folder) are skipped
    let (mut runs, mut folders, mut passed) = (vec![], vec![], vec![]);
    for folder in &args.runs {
        let run = if args.runs.len() == 1 { seen(folder) } else { read(folder) };
        match run {
            Ok(run) => {
                runs.push(run);
                folders.push(folder);
            }
            Err(e) if args.runs.len() > 1 && e.has_no_step() => passed.push((folder, e)),
            Err(e) => return Err(e.into()),
        }
    }
    passed.iter().for_each(|(_, why)| show::say(format_args!("passed over: {why:#}")));
    if runs.is_empty() {
        bail!("none of the {} folders holds a run with a step", args.runs.len());
    }
    page(&runs, &out)?;
    let differing = report::differences(&runs);
    if args.json {
        let results = folders.into_iter().zip(&runs);
        let results = results.map(|(folder, run)| {
            let mut result = serde_json::to_value(&run.results)?;
            result["state"] = serde_json::to_value(run.state)?;
            result["first_loss"] = run.first_loss.into();
            result["folder"] = folder.display().to_string().into();
            Ok(result)
        });
        let results: Vec<Value> = results.collect::<Result<_>>()?;
        let passed: Vec<_> = passed.iter().map(|(folder, _)| folder.display().to_string()).collect();
        return show::json(&json!({ "page": out, "runs": results, "differs": differing, "passed_over": passed }));
    }
    let head = ["", "steps", "train loss", "val loss", "bits/byte", "best step", "tokens", "tok/s", "time"];
    let rows = runs.iter().map(|run| {
        let r = &run.results;
        let [train, val, bits] =
            [r.train_loss, r.val_loss, r.val_bits_per_byte].map(|v| v.map_or("-".into(), |v| format!("{v:.4}")));
        let (steps, best) = (show::commas(r.steps), show::commas(r.best_step));
        let (tokens, speed) = (count(r.tokens as f64), count(r.tok_s));
        vec![run.name.clone(), steps, train, val, bits, best, tokens, speed, duration(r.seconds)]
    });
    let mut text = show::whole_columns(&head, &rows.collect::<Vec<_>>());
    if !differing.is_empty() {
        let names: Vec<_> = std::iter::once("differs").chain(runs.iter().map(|run| run.name.as_str())).collect();
        let row =
            |(key, values): (&&str, &Vec<&str>)| std::iter::once(key).chain(values).map(ToString::to_string).collect();
        text += &format!("\n{}", show::whole_columns(&names, &differing.iter().map(row).collect::<Vec<_>>()));
    }
    show::out(&text)?;
    show::say(format_args!(
        "train loss: mean of the last {RECENT} steps; val loss, bits/byte: of the best step; tok/s: with evaluations \
         and saves"
    ));
    report::caution(&runs).into_iter().for_each(show::prose);
    show::say(format_args!("the curves are in {}", out.display()));
    Ok(())
}
