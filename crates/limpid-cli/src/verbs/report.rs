//! `report`: the results of runs, as a page of curves and a table.

use crate::records::{page, read, seen};
use crate::show;
use anyhow::{Result, bail};
use limpid::train::RECENT;
use limpid_base::units::{count, duration};
use limpid_report::{self as report, ReportError};
use std::path::PathBuf;

/// Show the results of runs, finished or not: a page with their curves, which any browser opens, and a table.
///
/// For several runs, the page draws the curves over each other and lists the settings in which they differ. Folders without a
/// step are skipped and named.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example: limpid report runs/*")]
pub struct Args {
    /// Folders of runs
    #[arg(value_name = "DIR", required = true)]
    runs: Vec<PathBuf>,
    /// File for the page [default: report.html in the run's folder; for several runs, in the current folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print the results as JSON on stdout
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<()> {
    let out = args.out.unwrap_or_else(|| match &args.runs[..] {
        [run] => run.join("report.html"),
        _ => "report.html".into(),
    });
    // of several, those without a step (never begun, or no run's folder) are skipped
    let (mut runs, mut folders, mut passed) = (vec![], vec![], vec![]);
    for folder in &args.runs {
        let run = if args.runs.len() == 1 { seen(folder) } else { read(folder) };
        match run {
            Ok(run) => {
                runs.push(run);
                folders.push(folder);
            }
            Err(e) if args.runs.len() > 1 && e.downcast_ref().is_some_and(ReportError::has_no_step) => {
                passed.push((folder, e))
            }
            Err(e) => return Err(e),
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
        let results: Vec<serde_json::Value> = results.collect::<Result<_>>()?;
        let passed: Vec<_> = passed.iter().map(|(folder, _)| folder.display().to_string()).collect();
        return show::json(
            &serde_json::json!({ "page": out, "runs": results, "differs": differing, "passed_over": passed }),
        );
    }
    let head =
        ["", "steps", "train loss", "val loss", "bits/byte", "best step", "tokens", "tok/s", "time"].map(String::from);
    let rows = runs.iter().map(|run| {
        let r = &run.results;
        let [train, val, bits] =
            [r.train_loss, r.val_loss, r.val_bits_per_byte].map(|v| v.map_or("-".into(), |v| format!("{v:.4}")));
        let (steps, best) = (show::commas(r.steps), show::commas(r.best_step));
        let (tokens, speed) = (count(r.tokens as f64), count(r.tok_s));
        vec![run.name.clone(), steps, train, val, bits, best, tokens, speed, duration(r.seconds)]
    });
    let mut text = table(std::iter::once(head.to_vec()).chain(rows).collect());
    if !differing.is_empty() {
        let names = std::iter::once("differs").chain(runs.iter().map(|run| run.name.as_str()));
        let rows = differing.iter().map(|(key, values)| std::iter::once(key).chain(values).copied().collect());
        let all = std::iter::once(names.collect::<Vec<_>>()).chain(rows);
        text += &format!("\n{}", table(all.map(|row| row.into_iter().map(String::from).collect()).collect()));
    }
    show::out(&text)?;
    show::say(format_args!(
        "train loss: mean of the last {RECENT} steps; val loss, bits/byte: of the best step; tok/s: with evaluations and saves"
    ));
    report::caution(&runs).into_iter().for_each(show::prose);
    show::say(format_args!("the curves are in {}", out.display()));
    Ok(())
}

/// Rows of cells, the first column left, the others right.
fn table(rows: Vec<Vec<String>>) -> String {
    let wide = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(wide).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, w))| match i {
            0 => format!("{cell:<w$}"),
            _ => format!("{cell:>w$}"),
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
