//! The page: the results in words and numbers, the curves, samples and settings; for several runs also what differs
//! between them. All text that comes from outside goes through [`escape`].

use crate::escape::escape;
use crate::plot::{Curve, CurvePlot, Style, around, mean, median, shared};
use crate::units::{bytes, count, duration};
use crate::{RunRecord, RunState, caution, differences, words};
use limpid_base::units::commas;
use limpid_core::model::in_block;
use limpid_draw::picture::png::base64;
use limpid_train::RECENT;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

/// One page of one run or several.
pub fn html(runs: &[RunRecord]) -> String {
    let title = escape(&runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>().join(", "));
    let mut body = format!("<h1>{title}</h1>\n");
    match runs {
        [run] => body += &format!("<p class=\"words\">{}</p>\n{}", summary(run), tiles(run)),
        _ => body += &compared(runs),
    }
    let plots = plots(runs);
    let all: Vec<&CurvePlot> = plots.iter().flat_map(|(_, plots)| plots).collect();
    let lines: usize = all.iter().flat_map(|plot| &plot.curves).map(|c| 1 + usize::from(!c.raw.is_empty())).sum();
    // two points a column, about 13 bytes a point
    let x = shared(&all);
    let columns = (25_000 / lines.max(1)).clamp(20, 424);
    let mut number = 0..;
    for (section, (heading, plots)) in plots.iter().enumerate().filter(|(_, (_, plots))| !plots.is_empty()) {
        let figures: String =
            plots.iter().zip(&mut number).map(|(plot, number)| plot.svg(number, &x, columns)).collect();
        let heading = escape(heading);
        let figures = format!("<div class=\"plots\">\n{figures}</div>\n");
        body += &match (section, runs.len()) {
            (0, _) => {
                format!("<section>\n<h2>{heading}</h2>\n<div id=\"bar\">{}</div>\n{figures}</section>\n", legend(runs))
            }
            (_, 1) => format!("<h2>{heading}</h2>\n{figures}"),
            _ => format!("<details><summary>{heading}</summary>\n{figures}</details>\n"),
        };
    }
    for run in runs {
        body += &samples(run, runs.len() > 1);
        body += &match &run.look {
            None => String::new(),
            Some(Err(why)) => format!("<p class=\"words\">The model itself is not shown: {}.</p>\n", escape(why)),
            Some(Ok(look)) => look.html(number.start),
        };
    }
    if runs.len() > 1 {
        body += &differing(runs);
    }
    for run in runs {
        body += &settings(run, runs.len() > 1);
    }
    let (css, js) = (include_str!("page.css"), include_str!("page.js"));
    // no other style or script, no picture from elsewhere: whatever a text smuggled in, it would do nothing
    let [style, script] = [css, js].map(|text| format!("'sha256-{}'", base64(&Sha256::digest(text))));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta \
         http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src {style}; script-src {script}; \
         img-src data:; base-uri 'none'; form-action 'none'\">\n<meta name=\"viewport\" content=\"width=device-width, \
         initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n<title>{title} - \
         limpid</title>\n<style>{css}</style>\n</head>\n<body>\n<main>\n{body}</main>\n<footer>Made by \
         limpid.</footer>\n<script>{js}</script>\n</body>\n</html>\n"
    )
}

/// Which curve is which run's, once for all plots.
fn legend(runs: &[RunRecord]) -> String {
    if runs.len() == 1 {
        return String::new();
    }
    let of = |(i, run): (usize, &RunRecord)| format!("<span>{}{}</span> ", Style::nth(i).key(), escape(&run.name));
    format!("<p class=\"legend\">{}</p>", runs.iter().enumerate().map(of).collect::<String>())
}

/// The results of a run, in words.
fn summary(run: &RunRecord) -> String {
    let r = &run.results;
    let steps = run.settings.get("steps").and_then(|steps| steps.parse::<u64>().ok());
    let of = steps.map_or(String::new(), |steps| format!(" of {}", commas(steps)));
    let done = match run.state {
        RunState::Finished => "Finished:".into(),
        RunState::Stopped => format!("Stopped before its end{}:", if of.is_empty() { "" } else { "," }),
        RunState::Unfinished => "Not finished when this was written:".to_string(),
    };
    let of = if run.state == RunState::Finished { String::new() } else { of };
    let mut text =
        format!("{done} {}{of} steps, {} tokens, {}.", commas(r.steps), commas(r.tokens), duration(r.seconds));
    text += &match (run.first_loss, r.train_loss) {
        (Some(first), Some(last)) => format!(
            " The training loss went from {first:.4} to {last:.4} nats a token (the mean of the last {} steps).",
            r.steps.min(RECENT as u64)
        ),
        _ => " There is no training loss: no batch had a token to predict.".into(),
    };
    if let Some(val) = r.val_loss {
        text += &match run.state {
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
    let state = match run.state {
        RunState::Finished => "",
        RunState::Stopped => " (stopped)",
        RunState::Unfinished => " (unfinished)",
    };
    vec![
        ("validation loss", r.val_loss.map(|v| format!("{v:.4}")).unwrap_or_default()),
        ("validation, bits per byte", r.val_bits_per_byte.map(|v| format!("{v:.4}")).unwrap_or_default()),
        ("entropy floor", r.entropy_floor.map(|v| format!("{v:.4}")).unwrap_or_default()),
        ("training loss, mean of the last steps", r.train_loss.map(|v| format!("{v:.4}")).unwrap_or_default()),
        ("best step", commas(r.best_step)),
        ("steps", commas(r.steps) + state),
        ("tokens", count(r.tokens as f64)),
        ("time", duration(r.seconds)),
        ("tokens a second, with evaluations", count(r.tok_s)),
        ("peak memory", r.peak_rss_bytes.map(bytes).unwrap_or_default()),
    ]
}

/// The first row of a table.
fn header(names: &[String]) -> String {
    let cells: String = names.iter().map(|name| format!("<th>{}</th>", escape(name))).collect();
    format!("<tr>{cells}</tr>\n")
}

/// The table of the results of several runs.
fn compared(runs: &[RunRecord]) -> String {
    let mut columns: Vec<(&str, Vec<String>)> = results(&runs[0]).iter().map(|(name, _)| (*name, Vec::new())).collect();
    for run in runs {
        columns.iter_mut().zip(results(run)).for_each(|((_, values), (_, value))| values.push(value));
    }
    columns.retain(|(_, values)| values.iter().any(|value| !value.is_empty()));
    let head: Vec<String> = [""].into_iter().chain(columns.iter().map(|c| c.0)).map(String::from).collect();
    let mut out = format!("<h2>Results</h2>\n<div class=\"wide\"><table>\n{}", header(&head));
    for (i, run) in runs.iter().enumerate() {
        let cells: String = columns.iter().map(|(_, values)| format!("<td>{}</td>", escape(&values[i]))).collect();
        out += &format!("<tr><th>{}{}</th>{cells}</tr>\n", Style::nth(i).key(), escape(&run.name));
    }
    out += "</table></div>\n";
    if let Some(words) = caution(runs) {
        out += &format!("<p class=\"words\">{words}</p>\n");
    }
    out
}

/// The settings in which several runs differ.
fn differing(runs: &[RunRecord]) -> String {
    let mut out = "<h2>What differs</h2>\n".to_string();
    let differing = differences(runs);
    if differing.is_empty() {
        return out + "<p>Nothing in their settings.</p>\n";
    }
    let names: Vec<String> = [String::new()].into_iter().chain(runs.iter().map(|run| run.name.clone())).collect();
    out += &format!("<div class=\"wide\"><table>\n{}", header(&names));
    for (key, values) in differing {
        let cells: String = values.iter().map(|value| format!("<td>{}</td>", escape(value))).collect();
        out += &format!("<tr><th>{}</th>{cells}</tr>\n", escape(key));
    }
    out + "</table></div>\n"
}

/// All plots under their headings.
fn plots(runs: &[RunRecord]) -> Vec<(String, Vec<CurvePlot>)> {
    let one = runs.len() == 1;
    let points = |run: &RunRecord, name: &str| run.series.get(name).cloned().unwrap_or_default();
    let each = |name: &str, smooth: Option<fn(&mut [f64]) -> f64>| -> Vec<Curve> {
        let of = |(i, run): (usize, &RunRecord)| {
            let raw = points(run, name);
            let label = if one { String::new() } else { run.name.clone() };
            let (points, raw) = match smooth {
                None => (raw, vec![]),
                Some(of) => (around(&raw, of), if one { raw } else { vec![] }),
            };
            Curve { label, style: Style::nth(i), points, raw }
        };
        runs.iter().enumerate().filter(|(_, run)| run.series.contains_key(name)).map(of).collect()
    };
    let plot = |title: &str, note: &str, log, curves: Vec<Curve>| {
        let said = if one { words::each(&curves, "steps") } else { words::ends(&curves) };
        CurvePlot { title: title.into(), note: note.into(), said, log, from: 0.0, legend: one, across: "step", curves }
    };
    let floor = |at: &[Curve]| {
        let floor =
            runs[0].results.entropy_floor.filter(|f| runs.iter().all(|r| r.results.entropy_floor == Some(*f)))?;
        let last = at.iter().flat_map(|curve| curve.points.last()).map(|p| p.0).fold(0.0, f64::max);
        Some(Curve::new("entropy floor", Style::reference(), vec![(0.0, floor), (last, floor)]))
    };
    let around_mean = "mean of the steps around";
    let mut first = vec![];
    let (mut train, mut val) = (each("train_loss", Some(mean)), each("val_loss", None));
    let floor = floor(&train);
    if one {
        train.iter_mut().for_each(|curve| curve.label = "training".into());
        val.iter_mut().for_each(|curve| (curve.label, curve.style) = ("validation".into(), Style::nth(1)));
        let gap = words::gap(&train, &val);
        train.extend(val);
        let closer = plot("Loss, closer", "what came after the first tenth of the steps", false, train.clone());
        let note =
            "nats a token; training: mean of the steps around, each step behind it; validation: on part of its text";
        let mut loss = plot("Loss", note, false, train);
        loss.curves.extend(floor);
        first.push(loss);
        first.push(CurvePlot { from: 0.1 * runs[0].results.steps as f64, said: gap, ..closer });
    } else {
        first.extend(losses(runs, (train, val), floor, &plot));
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

/// A plot of a title, a note, whether it is logarithmic, and curves.
type MakePlot<'a> = dyn Fn(&str, &str, bool, Vec<Curve>) -> CurvePlot + 'a;

/// What is said of losses that are counted in different tokens.
const CANNOT: &str = "; the tokens differ, so these losses cannot be compared";

/// The losses of several runs; where their tokens differ, validation in bits per byte if that is known.
fn losses(
    runs: &[RunRecord],
    (train, val): (Vec<Curve>, Vec<Curve>),
    floor: Option<Curve>,
    plot: &MakePlot,
) -> [CurvePlot; 2] {
    let differ = caution(runs).is_some();
    let alone = if differ { CANNOT } else { "" };
    let note = format!("nats a token, mean of the steps around{alone}");
    // curves that cannot be compared are told one by one
    let plot = |title: &str, note: &str, log: bool, curves: Vec<Curve>| {
        let mut plot = plot(title, note, log, curves);
        if note.ends_with(CANNOT) {
            plot.said = words::each(&plot.curves, "steps");
        }
        plot
    };
    let mut training = plot("Training loss", &note, false, train);
    training.curves.extend(floor.clone());
    let validation = match in_bits(runs, &val).filter(|_| differ) {
        Some(bits) => {
            plot("Validation, bits per byte", "on part of the text; the tokens differ, bytes do not", false, bits)
        }
        None => {
            let mut plot = plot("Validation loss", &format!("nats a token, on part of the text{alone}"), false, val);
            plot.curves.extend(floor);
            plot
        }
    };
    [training, validation]
}

/// Curves of validation losses in bits per byte, where every run knows its bytes: so many of its tokens make one.
fn in_bits(runs: &[RunRecord], losses: &[Curve]) -> Option<Vec<Curve>> {
    let each = |curve: &Curve| {
        let run = runs.iter().find(|run| run.name == curve.label)?;
        let factor = run.results.val_bits_per_byte? / run.results.val_loss.filter(|loss| *loss > 0.0)?;
        let points = curve.points.iter().map(|(step, loss)| (*step, loss * factor)).collect();
        Some(Curve { points, ..curve.clone() })
    };
    losses.iter().map(each).collect()
}

/// A plot for each statistic of the layers, a curve a layer, coloured by depth.
fn layers(run: &RunRecord) -> Vec<CurvePlot> {
    let parts = |name: &str| {
        let (layer, what) = name.strip_prefix("layers/")?.rsplit_once('/')?;
        Some((layer.to_string(), what.to_string()))
    };
    let told: Vec<_> = run.series.iter().filter_map(|(name, points)| Some((parts(name)?, points))).collect();
    let block = |layer: &str| in_block(layer).map(|(block, _)| block);
    let deepest = told.iter().filter_map(|((layer, _), _)| block(layer)).max().unwrap_or(0);
    let whats: BTreeSet<&String> = told.iter().map(|((_, what), _)| what).collect();
    let make = |what: &String| {
        let mut curves: Vec<((u8, usize), Curve)> = vec![];
        for ((layer, _), points) in told.iter().filter(|((_, of), _)| of == what) {
            let (place, style) = match block(layer) {
                Some(n) => ((1, n), Style::depth(n, deepest)),
                None if layer.contains("embed") && !layer.contains("un") => ((0, 0), Style::beside(0)),
                None => ((2, 0), Style::beside(0)),
            };
            curves.push((place, Curve::new(layer, style, points.to_vec())));
        }
        curves.sort_by_key(|(place, _)| *place);
        let others = curves.iter_mut().filter(|((part, _), _)| *part != 1);
        others.enumerate().for_each(|(i, (_, curve))| curve.style = Style::beside(i));
        let curves: Vec<Curve> = curves.into_iter().map(|(_, curve)| curve).collect();
        let (title, note) = match what.as_str() {
            "grad_norm" => ("Norm of the gradient, by layer".into(), "before clipping"),
            "weight_norm" => ("Norm of the weights, by layer".into(), ""),
            "update_ratio" => {
                ("Update over weights, by layer".into(), "norm of a step's change over the norm of the weights")
            }
            other => (other.to_string(), ""),
        };
        let said = words::ends(&curves);
        CurvePlot { title, note: note.into(), said, log: true, from: 0.0, legend: true, across: "step", curves }
    };
    whats.into_iter().map(make).collect()
}

/// The samples of a run.
fn samples(run: &RunRecord, named: bool) -> String {
    let name = if named { format!(": {}", escape(&run.name)) } else { String::new() };
    let mut out = String::new();
    for sample in &run.samples {
        let (prompt, text) = (escape(sample.prompt.trim_start()), escape(&sample.text));
        let step = commas(sample.step);
        out += &format!("<h2>A sample after step {step}{name}</h2>\n<blockquote><b>{prompt}</b>{text}</blockquote>\n");
    }
    out
}

/// The settings of a run.
fn settings(run: &RunRecord, named: bool) -> String {
    let row =
        |(key, value): (&String, &String)| format!("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(key), escape(value));
    let rows: String = run.settings.iter().map(row).collect();
    let (name, open) = if named { (format!(": {}", escape(&run.name)), "") } else { (String::new(), " open") };
    format!("<details{open}><summary>Settings{name}</summary>\n<dl class=\"settings\">\n{rows}</dl></details>\n")
}
