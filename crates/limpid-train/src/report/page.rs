//! The page: the results in words and numbers, the curves, samples and settings; for several runs also what differs between them.
//! All text that comes from outside goes through [`escape`].

use super::plot::{Curve, Look, Plot, around, mean, median};
use super::units::{bytes, count, duration};
use super::{RunRecord, RunState, differences};
use crate::RECENT;
use limpid_base::units::commas;
use std::collections::BTreeSet;

/// Text as HTML shows it.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c => out.push(c),
        }
    }
    out
}

/// One page of one run or several.
pub fn html(runs: &[RunRecord]) -> String {
    let title = escape(&runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>().join(", "));
    let mut body = format!("<h1>{title}</h1>\n");
    match runs {
        [run] => body += &format!("<p class=\"words\">{}</p>\n{}", words(run), tiles(run)),
        _ => body += &compared(runs),
    }
    let plots = plots(runs);
    let curves: usize = plots.iter().flat_map(|(_, plots)| plots).map(|plot| plot.curves.len()).sum();
    // two points a column, about 13 bytes a point
    let columns = (25_000 / curves.max(1)).clamp(20, 424);
    for (heading, plots) in plots {
        let figures: String = plots.iter().map(|plot| plot.svg(columns)).collect();
        if !figures.is_empty() {
            body += &format!("<h2>{}</h2>\n<div class=\"plots\">\n{figures}</div>\n", escape(&heading));
        }
    }
    for run in runs {
        body += &samples(run, runs.len() > 1);
    }
    for run in runs {
        body += &settings(run, runs.len() > 1);
    }
    let (css, js) = (include_str!("page.css"), include_str!("page.js"));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title} - limpid</title>\n\
         <style>\n{css}{}</style>\n</head>\n<body>\n{body}<footer>Made by limpid.</footer>\n\
         <script>\n{js}</script>\n</body>\n</html>\n",
        ramp()
    )
}

/// The results of a run, in words.
fn words(run: &RunRecord) -> String {
    let r = &run.results;
    let of = run
        .settings
        .get("steps")
        .and_then(|s| s.parse().ok())
        .map_or(String::new(), |steps: u64| format!(" of {}", commas(steps)));
    let done = match r.state {
        RunState::Finished => "Finished:".into(),
        RunState::Stopped => format!("Stopped before its end{}:", if of.is_empty() { "" } else { "," }),
        RunState::Unfinished => "Not finished when this was written:".to_string(),
    };
    let of = if r.state == RunState::Finished { String::new() } else { of };
    let mut text = format!(
        "{done} {}{of} steps, {} tokens, {}. The training loss went from {:.4} to {:.4} nats a token (the mean of the last {} steps).",
        commas(r.steps),
        commas(r.tokens),
        duration(r.seconds),
        r.first_loss,
        r.train_loss,
        r.steps.min(RECENT as u64)
    );
    if let Some(val) = r.val_loss {
        text += &match r.state {
            RunState::Finished => format!(" The validation loss is {val:.4}"),
            _ => format!(" The least validation loss during training was {val:.4}"),
        };
        text += &format!(", with the weights of step {}", commas(r.best_step));
        if let Some(floor) = r.entropy_floor {
            text +=
                &format!("; no model can get below {floor:.4} on that text, so {:.4} is left to learn", val - floor);
        }
        text.push('.');
    }
    escape(&text)
}

/// The numbers that people look for first.
fn tiles(run: &RunRecord) -> String {
    let tile = |(name, value): (&str, String)| format!("<div><dt>{name}</dt><dd>{}</dd></div>\n", escape(&value));
    let all: String = results(run).into_iter().filter(|(_, value)| !value.is_empty()).map(tile).collect();
    format!("<dl class=\"tiles\">\n{all}</dl>\n")
}

/// Results by name; empty where there is none.
fn results(run: &RunRecord) -> Vec<(&'static str, String)> {
    let r = &run.results;
    let state = match r.state {
        RunState::Finished => "",
        RunState::Stopped => " (stopped)",
        RunState::Unfinished => " (unfinished)",
    };
    vec![
        ("validation loss", r.val_loss.map(|v| format!("{v:.4}")).unwrap_or_default()),
        ("entropy floor", r.entropy_floor.map(|v| format!("{v:.4}")).unwrap_or_default()),
        ("training loss, mean of the last steps", format!("{:.4}", r.train_loss)),
        ("best step", commas(r.best_step)),
        ("steps", commas(r.steps) + state),
        ("tokens", count(r.tokens as f64)),
        ("time", duration(r.seconds)),
        ("tokens a second, with evaluations", count(r.tok_s)),
        ("peak memory", r.peak_rss_bytes.map(bytes).unwrap_or_default()),
    ]
}

/// Tables of the results of several runs, and of the settings in which they differ.
fn compared(runs: &[RunRecord]) -> String {
    let row = |kind: &str, cells: &[String]| {
        let cells: String = cells.iter().map(|cell| format!("<{kind}>{}</{kind}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let mut columns: Vec<(&str, Vec<String>)> = results(&runs[0]).iter().map(|(name, _)| (*name, Vec::new())).collect();
    for run in runs {
        columns.iter_mut().zip(results(run)).for_each(|((_, values), (_, value))| values.push(value));
    }
    columns.retain(|(_, values)| values.iter().any(|value| !value.is_empty()));
    let head: Vec<String> = [""].into_iter().chain(columns.iter().map(|c| c.0)).map(String::from).collect();
    let mut out = format!("<h2>Results</h2>\n<div class=\"wide\"><table>\n{}", row("th", &head));
    for (i, run) in runs.iter().enumerate() {
        let cells: String = columns.iter().map(|(_, values)| format!("<td>{}</td>", escape(&values[i]))).collect();
        let colour = colour(i);
        out += &format!("<tr><th><i style=\"border-color:{colour}\"></i>{}</th>{cells}</tr>\n", escape(&run.name));
    }
    out += "</table></div>\n<h2>What differs</h2>\n";
    let differing = differences(runs);
    if differing.is_empty() {
        return out + "<p>Nothing in their settings.</p>\n";
    }
    let names: Vec<String> = [String::new()].into_iter().chain(runs.iter().map(|run| run.name.clone())).collect();
    out += &format!("<div class=\"wide\"><table>\n{}", row("th", &names));
    for (key, values) in differing {
        let cells: String = values.iter().map(|value| format!("<td>{}</td>", escape(value))).collect();
        out += &format!("<tr><th>{}</th>{cells}</tr>\n", escape(key));
    }
    out + "</table></div>\n"
}

/// The colour of a run among others.
fn colour(run: usize) -> String {
    format!("var(--c{})", run % 8)
}

/// All plots under their headings.
fn plots(runs: &[RunRecord]) -> Vec<(String, Vec<Plot>)> {
    let one = runs.len() == 1;
    let points = |run: &RunRecord, name: &str| run.series.get(name).cloned().unwrap_or_default();
    let each = |name: &str, smooth: Option<fn(&mut [f64]) -> f64>| -> Vec<Curve> {
        let of = |(i, run): (usize, &RunRecord)| {
            let raw = points(run, name);
            let label = if one { String::new() } else { run.name.clone() };
            let look = if i < 8 { Look::Line } else { Look::Dashed };
            let curve = |label, look, points| Curve { label, colour: colour(i), look, points };
            match smooth {
                None => vec![curve(label, look, raw)],
                Some(of) if one => {
                    let smooth = around(&raw, of);
                    vec![curve(String::new(), Look::Faint, raw), curve(label, look, smooth)]
                }
                Some(of) => vec![curve(label, look, around(&raw, of))],
            }
        };
        let drawn = runs.iter().enumerate().filter(|(_, run)| run.series.contains_key(name));
        drawn.flat_map(of).collect()
    };
    let plot = |title: &str, note: &str, log, curves| Plot { title: title.into(), note: note.into(), log, curves };
    let floor = |at: &[Curve]| {
        let floor =
            runs[0].results.entropy_floor.filter(|f| runs.iter().all(|r| r.results.entropy_floor == Some(*f)))?;
        let last = at.iter().flat_map(|curve| curve.points.last()).map(|p| p.0).fold(0.0, f64::max);
        let points = vec![(0.0, floor), (last, floor)];
        Some(Curve { label: "entropy floor".into(), colour: "var(--dim)".into(), look: Look::Dashed, points })
    };
    let around_mean = "mean of the steps around";
    let mut first = vec![];
    let (mut train, mut val) = (each("train_loss", Some(mean)), each("val_loss", None));
    val.iter_mut().for_each(|curve| curve.look = Look::Marked);
    if one {
        train.iter_mut().for_each(|curve| curve.label = "training".into());
        val.iter_mut().for_each(|curve| (curve.label, curve.colour) = ("validation".into(), colour(1)));
        let floor = floor(&train);
        train.extend(val);
        let last = train[0].points.last().map_or(0.0, |p| p.0);
        let later = |curve: &Curve| Curve {
            points: curve.points.iter().copied().filter(|p| p.0 >= 0.1 * last).collect(),
            label: curve.label.clone(),
            colour: curve.colour.clone(),
            ..*curve
        };
        let later = train.iter().map(later).collect();
        train.extend(floor);
        first.push(plot("Loss", "nats a token; training: mean of the steps around, each step behind it", false, train));
        first.push(plot("Loss, closer", "after the first tenth of the steps", false, later));
    } else {
        train.extend(floor(&train));
        val.extend(floor(&val));
        first.push(plot("Training loss", &format!("nats a token, {around_mean}"), false, train));
        first.push(plot("Validation loss", "nats a token, on part of the text", false, val));
    }
    first.push(plot("Learning rate", "", false, each("learning_rate", None)));
    let norms = each("grad_norm", Some(mean));
    first.push(plot("Norm of the gradient", &format!("before clipping, {around_mean}"), true, norms));
    let speed = each("tokens_per_second", Some(median));
    first.push(plot("Tokens a second", "median of the steps around; evaluations and saves count", false, speed));
    const SHOWN: [&str; 8] = [
        "train_loss",
        "val_loss",
        "learning_rate",
        "grad_norm",
        "tokens_per_second",
        "tokens",
        "seconds",
        "val_tokens",
    ];
    let names: BTreeSet<&String> = runs.iter().flat_map(|run| run.series.keys()).collect();
    for name in names.into_iter().filter(|name| !name.starts_with("layers/") && !SHOWN.contains(&name.as_str())) {
        first.push(plot(name, "", false, each(name, None)));
    }
    let mut all = vec![("Curves".to_string(), first)];
    for run in runs {
        let heading = if one { "Layer by layer".into() } else { format!("Layer by layer: {}", run.name) };
        all.push((heading, layers(run)));
    }
    all
}

/// A plot for each statistic of the layers, a curve a layer, coloured by depth.
fn layers(run: &RunRecord) -> Vec<Plot> {
    let parts = |name: &str| {
        let (layer, what) = name.strip_prefix("layers/")?.rsplit_once('/')?;
        Some((layer.to_string(), what.to_string()))
    };
    let told: Vec<_> = run.series.iter().filter_map(|(name, points)| Some((parts(name)?, points))).collect();
    let block = |layer: &str| layer.strip_prefix("blocks.").and_then(|n| n.parse::<usize>().ok());
    let deepest = told.iter().filter_map(|((layer, _), _)| block(layer)).max().unwrap_or(0);
    let whats: BTreeSet<&String> = told.iter().map(|((_, what), _)| what).collect();
    let make = |what: &String| {
        let mut curves: Vec<((u8, usize), Curve)> = vec![];
        for ((layer, _), points) in told.iter().filter(|((_, of), _)| of == what) {
            let (place, colour, look) = match block(layer) {
                Some(n) => ((1, n), format!("var(--d{})", n * (RAMP - 1) / deepest.max(1)), Look::Line),
                None if layer.contains("embed") && !layer.contains("un") => {
                    ((0, 0), "var(--dim)".to_string(), Look::Line)
                }
                None => ((2, 0), "var(--dim)".to_string(), Look::Dashed),
            };
            curves.push((place, Curve { label: layer.clone(), colour, look, points: points.to_vec() }));
        }
        curves.sort_by_key(|(place, _)| *place);
        let (title, note) = match what.as_str() {
            "grad_norm" => ("Norm of the gradient".into(), "before clipping"),
            "weight_norm" => ("Norm of the weights".into(), ""),
            "update_ratio" => ("Update over weights".into(), "norm of a step's change over the norm of the weights"),
            other => (other.to_string(), ""),
        };
        Plot { title, note: note.into(), log: true, curves: curves.into_iter().map(|(_, curve)| curve).collect() }
    };
    whats.into_iter().map(make).collect()
}

/// Colours by depth.
const RAMP: usize = 12;

/// Colours from the first block to the last, for light and for dark: between four anchors, in equal parts.
fn ramp() -> String {
    let between = |anchors: [[f64; 3]; 4], i: usize| {
        let at = i as f64 / (RAMP - 1) as f64 * 3.0;
        let from = (at as usize).min(2);
        let [r, g, b] = [0, 1, 2].map(|c| {
            let (a, b) = (anchors[from][c], anchors[from + 1][c]);
            (a + (b - a) * (at - from as f64)).round() as u8
        });
        format!("--d{i}:#{r:02x}{g:02x}{b:02x};")
    };
    let all = |anchors| (0..RAMP).map(|i| between(anchors, i)).collect::<String>();
    let light = [[18., 60., 170.], [126., 30., 170.], [204., 60., 110.], [226., 130., 40.]];
    let dark = [[90., 140., 255.], [185., 110., 245.], [240., 120., 160.], [250., 190., 90.]];
    format!(":root{{{}}}\n@media (prefers-color-scheme:dark){{:root{{{}}}}}\n", all(light), all(dark))
}

/// The samples of a run.
fn samples(run: &RunRecord, named: bool) -> String {
    let name = if named { format!(": {}", run.name) } else { String::new() };
    let mut out = String::new();
    for sample in &run.samples {
        let (prompt, text) = (escape(sample.prompt.trim_start()), escape(&sample.text));
        let step = commas(sample.step);
        out += &format!(
            "<h2>A sample after step {step}{}</h2>\n<blockquote><b>{prompt}</b>{text}</blockquote>\n",
            escape(&name)
        );
    }
    out
}

/// The settings of a run.
fn settings(run: &RunRecord, named: bool) -> String {
    let row =
        |(key, value): (&String, &String)| format!("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(key), escape(value));
    let rows: String = run.settings.iter().map(row).collect();
    let (name, open) = if named { (format!(": {}", run.name), "") } else { (String::new(), " open") };
    format!(
        "<details{open}><summary>Settings{}</summary>\n<dl class=\"settings\">\n{rows}</dl></details>\n",
        escape(&name)
    )
}
