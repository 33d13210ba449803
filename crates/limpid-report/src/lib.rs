//! Reports of runs: [`RunRecord::read`] reads a run's folder, [`html`] makes one page of one run or several. The page
//! is complete in itself: it needs no network and no script, and is light or dark as the reader's browser is.
//!
//! `plot.rs` draws curves as SVG, `words.rs` says what they do, `model.rs` shows the model
//! at the end, `page.rs` puts the page together, with `page.css` and, for readers who point
//! at it, `page.js`; `units` of limpid-base says numbers as people read them.

mod escape;
mod model;
mod page;
mod plot;
pub mod records;
mod words;

pub use limpid_base::units;
pub use model::ModelLook;
pub use page::html;

use limpid_checkpoint::{CheckpointError, at};
use limpid_train::evaluate::mean;
use limpid_train::log::{self, METRICS, Speed};
use limpid_train::{RECENT, Summary};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// Why a run cannot be reported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// A folder of something else.
    #[error("{} is not a run's folder: it has no {METRICS}, which every run writes", .0.display())]
    NotARun(PathBuf),
    /// A run before its first step.
    #[error("{}: {METRICS} holds no step yet: report again when the run has done one", .0.display())]
    Empty(PathBuf),
    /// A file that cannot be read, or what is wrong in it.
    #[error(transparent)]
    File(#[from] CheckpointError),
    /// The settings of a run that cannot be read.
    #[error(transparent)]
    Settings(#[from] limpid::Error),
}

impl ReportError {
    /// Whether there is nothing to report, rather than something wrong.
    pub fn has_no_step(&self) -> bool {
        matches!(self, ReportError::NotARun(_) | ReportError::Empty(_))
    }
}

/// A sample that the model generated, as the log has it.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleRecord {
    /// The step it was written after.
    pub step: u64,
    /// The prompt.
    pub prompt: String,
    /// The text.
    pub text: String,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// To its last step.
    Finished,
    /// Until somebody stopped it.
    Stopped,
    /// It has written no summary of its last step: it goes on, or was killed.
    Unfinished,
}

/// A run as its folder records it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRecord {
    /// The folder's name.
    pub name: String,
    /// Its settings: the keys of config.json, and those that the caller adds.
    pub settings: BTreeMap<String, String>,
    /// A checksum of its tokenizer, if it has one: losses in nats a token compare only runs with the same.
    pub tokenizer: Option<u64>,
    /// Every number of the log by name: (step, value), steps ascending; and `tokens_per_second`, made of two.
    pub series: BTreeMap<String, Vec<(f64, f64)>>,
    /// Texts it wrote.
    pub samples: Vec<SampleRecord>,
    /// How far it has come.
    pub state: RunState,
    /// Training loss of the first step that has one, in nats per token.
    pub first_loss: Option<f64>,
    /// Its results so far: those of its summary, or before that what the log says.
    pub results: Summary,
    /// Its model with the last sample, or why that cannot be shown; none where nobody looked.
    pub look: Option<Result<ModelLook, String>>,
}

impl RunRecord {
    /// Reads a folder, during the run or after it.
    ///
    /// # Errors
    /// If it is no run's, has no step yet, or holds a line or file that cannot be read, which is named.
    pub fn read(folder: &Path) -> Result<RunRecord, ReportError> {
        if !folder.join(METRICS).exists() {
            return Err(ReportError::NotARun(folder.into()));
        }
        let (mut series, mut samples) = (BTreeMap::<_, Vec<_>>::new(), vec![]);
        let mut speed = Speed::default();
        for line in log::read(folder)? {
            let step = line["step"].as_u64().unwrap_or_default();
            let of = speed.at(&line).map(|speed| ("tokens_per_second".to_string(), speed));
            for (name, value) in log::numbers(&line).into_iter().chain(of) {
                series.entry(name).or_default().push((step as f64, value));
            }
            if let Some(text) = line["sample"].as_str() {
                let prompt = line["prompt"].as_str().unwrap_or_default().to_string();
                samples.push(SampleRecord { step, prompt, text: text.into() });
            }
        }
        let summary = json(&folder.join("summary.json"))?.unwrap_or_default();
        let (state, results) = results(&series, &summary).ok_or_else(|| ReportError::Empty(folder.into()))?;
        let first_loss = series.get("train_loss").and_then(|losses| losses.first()).map(|(_, loss)| *loss);
        let config = json(&folder.join("config.json"))?.unwrap_or_default();
        let whole = std::path::absolute(folder).unwrap_or_else(|_| folder.into());
        let name = whole.file_name().map_or_else(|| folder.display().to_string(), |n| n.to_string_lossy().into());
        let tokenizer =
            limpid_base::files::read_small(&folder.join("tokenizer.json"), u64::MAX).ok().map(|bytes| xxh3_64(&bytes));
        let settings = BTreeMap::new();
        let mut run = RunRecord { name, settings, tokenizer, series, samples, state, first_loss, results, look: None };
        config.as_object().into_iter().flatten().for_each(|(key, value)| run.set(key, value));
        Ok(run)
    }

    /// Adds a setting; parts of an object are `key_part`, as in a configuration file.
    pub fn set(&mut self, key: &str, value: &Value) {
        let text = match value {
            Value::Null => return,
            Value::Object(parts) => return parts.iter().for_each(|(part, v)| self.set(&format!("{key}_{part}"), v)),
            Value::String(text) => text.clone(),
            // as it was meant: 0.1 times 0.003 is not 0.00030000000000000003
            Value::Number(n) if n.is_f64() => format!("{:.12e}", n.as_f64().unwrap_or_default())
                .parse::<f64>()
                .map_or_else(|_| n.to_string(), |v| v.to_string()),
            other => other.to_string(),
        };
        self.settings.insert(key.into(), text);
    }
}

/// The settings in which runs differ: each run's value in the order of the runs, empty where it has none.
pub fn differences(runs: &[RunRecord]) -> BTreeMap<&str, Vec<&str>> {
    let keys = runs.iter().flat_map(|run| run.settings.keys());
    let row = |key: &String| runs.iter().map(|run| run.settings.get(key).map_or("", String::as_str)).collect();
    let all: BTreeMap<&str, Vec<&str>> = keys.map(|key| (key.as_str(), row(key))).collect();
    all.into_iter().filter(|(_, values)| values.iter().any(|v| *v != values[0])).collect()
}

/// What to know before losses of several runs are compared: whose tokens differ.
pub fn caution(runs: &[RunRecord]) -> Option<&'static str> {
    let differ = runs.iter().any(|run| run.tokenizer != runs[0].tokenizer);
    let mend = "These runs have different tokenizers, and a loss in nats a token is lower where tokens are shorter: \
                compare bits per byte, and those only on the same text.";
    differ.then_some(mend)
}

/// A noisy curve as the page draws it: means of the steps around.
pub fn smoothed(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    plot::around(points, plot::mean)
}

fn json(path: &Path) -> Result<Option<Value>, ReportError> {
    if !path.exists() {
        return Ok(None);
    }
    let text = at(path, limpid_base::files::read_text(path, 16 << 20))?;
    let bad = |e| CheckpointError::Format { path: path.into(), what: format!("it is not JSON ({e})") };
    Ok(Some(serde_json::from_str(&text).map_err(bad)?))
}

/// How far a run has come, and its results: from the summary if it is of the last step, else from the log.
fn results(series: &BTreeMap<String, Vec<(f64, f64)>>, summary: &Value) -> Option<(RunState, Summary)> {
    let values = |name: &str| series.get(name).map_or(&[][..], Vec::as_slice);
    let last = |name: &str| values(name).last().map_or(0.0, |(_, value)| *value);
    let train: Vec<f64> = values("train_loss").iter().map(|(_, loss)| *loss).collect();
    // every step has these
    let (steps, _) = values("tokens").last()?;
    let done = summary["steps"].as_f64() == Some(*steps);
    let stopped = done && summary["stopped"] == true;
    let recent = &train[train.len().saturating_sub(RECENT)..];
    let best = values("val_loss").iter().min_by(|a, b| a.1.total_cmp(&b.1));
    let told = |key: &str| summary[key].as_f64().filter(|_| done);
    let tokens = last("tokens");
    let seconds = told("seconds").unwrap_or(last("seconds"));
    let state = if !done {
        RunState::Unfinished
    } else if stopped {
        RunState::Stopped
    } else {
        RunState::Finished
    };
    let results = Summary {
        steps: *steps as u64,
        train_loss: told("train_loss").or(mean(recent)),
        losses: Some(recent.len()),
        // of the kept weights on all of the text, or the least during training while that is not known
        val_loss: told("val_loss").or(best.map(|p| p.1)),
        val_bits_per_byte: told("val_bits_per_byte"),
        best_step: told("best_step").or(best.map(|p| p.0)).unwrap_or(*steps) as u64,
        tokens: tokens as u64,
        seconds,
        tok_s: if seconds > 0.0 { tokens / seconds } else { 0.0 },
        peak_rss_bytes: summary["peak_rss_bytes"].as_u64(),
        device_bytes: None,
        threads: None,
        entropy_floor: summary["entropy_floor"].as_f64(),
        stopped,
        ended_early: done && summary["ended_early"] == true,
        missing: vec![],
    };
    Some((state, results))
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpid_draw::picture::png::base64;
    use serde_json::json;
    use sha2::{Digest, Sha256};
    use std::fs;

    /// A run of 5,000 steps with spikes, layers and a text that is full of markup.
    fn record(name: &str) -> (RunRecord, Vec<Value>) {
        let folder = std::env::temp_dir().join(format!("limpid-report-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let mut lines = vec![];
        for n in 1..=5000_u64 {
            let loss = if n == 3210 { 9.5 } else { 2.0 + 5.0 / n as f64 };
            lines.push(
                json!({ "step": n, "train_loss": loss, "tokens": 100 * n, "seconds": 0.5 * n as f64, "time": 7 }),
            );
            if n % 500 == 0 {
                lines.push(json!({ "step": n, "val_loss": 2.5 + (n as f64 - 4000.0).abs() / 1000.0 }));
                let of = |k: f64| json!({ "grad_norm": k / n as f64 });
                let layers =
                    json!({ "embed": of(9.0), "blocks.10": of(3.0), "blocks.2": of(2.0), "ln_final": of(1.0) });
                lines.push(json!({ "step": n, "layers": layers }));
            }
        }
        lines.push(json!({ "step": 5000, "prompt": "", "sample": "a <b> & \"c\" <|endoftext|>" }));
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(folder.join(METRICS), text).unwrap();
        fs::write(folder.join("config.json"), r#"{"n_layer":11,"rotary_scaling":{"factor":8.0},"d_head":null}"#)
            .unwrap();
        let run = RunRecord::read(&folder).unwrap();
        fs::remove_dir_all(folder).unwrap();
        (run, lines)
    }

    /// A figure, and what its attributes say.
    fn figure<'a>(page: &'a str, title: &str) -> &'a str {
        let from = page.find(&format!("<b>{title}</b>")).unwrap();
        &page[from..from + page[from..].find("</figure>").unwrap()]
    }
    fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
        let at = text.find(from).unwrap_or_else(|| panic!("no {from} in {text}")) + from.len();
        &text[at..at + text[at..].find(to).unwrap()]
    }
    fn numbers(text: &str) -> Vec<f64> {
        text.split(' ').map(|v| v.parse().unwrap()).collect()
    }
    /// The points of the curve of a label; of the raw one behind the first if there is no label.
    fn points(figure: &str, label: &str) -> Vec<(f64, f64)> {
        let from = if label.is_empty() { "faint\"" } else { label };
        let line = &figure[figure.find(from).unwrap_or_else(|| panic!("no {from}"))..];
        let pair = |p: &str| p.split_once(',').map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap())).unwrap();
        between(line, "points=\"", "\"").split(' ').map(pair).collect()
    }

    #[test]
    fn what_is_drawn_is_what_was_told() {
        let (run, lines) = record("drawn");
        let page = html(std::slice::from_ref(&run));
        assert!(page.len() < 1_000_000);
        let loss = figure(&page, "Loss");
        let want: Vec<(f64, f64)> =
            lines.iter().filter_map(|l| Some((l["step"].as_f64()?, l["val_loss"].as_f64()?))).collect();
        assert_eq!(points(loss, "data-label=\"validation\""), want);
        // of 5,000 raw points a column keeps two, and the one spike and the first loss are among them
        let raw = points(loss, "");
        assert!(raw.len() < 900 && raw[0] == (1.0, 7.0) && raw.contains(&(3210.0, 9.5)), "{}", raw.len());
        // the matrix puts the corners of the axes into the corners of the box, of every figure over the same steps
        let mut figures = 0;
        for svg in page.split("<svg class=\"plot\" data-across=\"step\"").skip(1) {
            figures += 1;
            let [x, y, at] = ["data-x=\"", "data-y=\"", "data-box=\""].map(|key| numbers(between(svg, key, "\"")));
            let m = numbers(between(svg, "matrix(", ")"));
            let y = if between(svg, "data-log=\"", "\"") == "true" { y.iter().map(|v| v.log10()).collect() } else { y };
            let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} {b}");
            assert_eq!(x, [0.0, 5000.0]);
            near(m[0] * x[0] + m[4], at[0]);
            near(m[0] * x[1] + m[4], at[1]);
            near(m[3] * y[0] + m[5], at[3]);
            near(m[3] * y[1] + m[5], at[2]);
        }
        assert_eq!(figures, 4);
        // closer: the axis goes as far as the values after the first tenth
        let y = numbers(between(figure(&page, "Loss, closer"), "data-y=\"", "\""));
        assert!(y[1] > 9.5 && y[1] < 10.0 && y[0] > 1.5 && y[0] < 2.01, "{y:?}");
        // layers stand in their order, on an axis of logarithms
        let layers = figure(&page, "Norm of the gradient, by layer");
        let places = ["embed", "blocks.2", "blocks.10", "ln_final"].map(|l| layers.find(&format!("\"{l}\"")).unwrap());
        assert!(places.is_sorted());
        let last = *points(layers, "\"blocks.10\"").last().unwrap();
        assert!(last.0 == 5000.0 && (10f64.powf(last.1) / (3.0 / 5000.0) - 1.0).abs() < 1e-4, "{last:?}");
        // and no two look the same, in colour or in grey
        let mut looks: Vec<&str> =
            layers.split("<svg class=\"key\"").skip(1).map(|key| between(key, "<path", "</svg>")).collect();
        let drawn = |key: &&str| (between(key, " s", "\"").to_string(), between(key, "M15 6", "\"").to_string());
        let mut grey: Vec<_> = looks.iter().map(drawn).collect();
        looks.sort_unstable();
        looks.dedup();
        grey.sort_unstable();
        grey.dedup();
        assert_eq!((looks.len(), grey.len()), (4, 4));
    }

    #[test]
    fn curves_say_what_they_do() {
        let (run, _) = record("words");
        let page = html(std::slice::from_ref(&run));
        let said = |title: &str| between(figure(&page, title), "<p>", "</p>").to_string();
        // of means of three steps, the second is below the middle of 7 and 2
        assert_eq!(
            said("Loss"),
            "Training falls from 7.00 to 2.00, fastest between steps 1 and 5; validation falls from 6.00 to 2.50 at \
             step 4,000, then rises to 3.50."
        );
        assert_eq!(
            said("Loss, closer"),
            "Validation is 1.50 above training at the end; it was lowest, 2.50, at step 4,000."
        );
        assert_eq!(said("Tokens a second"), "Stays at 200.");
        assert_eq!(
            said("Norm of the gradient, by layer"),
            "Ends lowest in ln_final (2.0e-4) and highest in embed (0.0018)."
        );
    }

    /// Losses that cannot be compared are not: each curve is told alone.
    #[test]
    fn losses_in_different_tokens_are_told_one_by_one() {
        let (run, _) = record("differ");
        let named = |name: &str, tokenizer| RunRecord { name: name.into(), tokenizer, ..run.clone() };
        for (tokenizers, compared) in
            [([Some(1), Some(1)], true), ([None, None], true), ([Some(1), Some(2)], false), ([Some(1), None], false)]
        {
            let page = html(&[named("a", tokenizers[0]), named("b", tokenizers[1])]);
            for title in ["Training loss", "Validation loss"] {
                let chart = figure(&page, title);
                assert_eq!(chart.contains("cannot be compared"), !compared, "{title} {tokenizers:?}");
                assert_eq!(chart.contains("Ends lowest"), compared, "{title} {tokenizers:?}");
            }
        }
    }

    #[test]
    fn several_runs_look_the_same_in_every_chart() {
        let (run, _) = record("several");
        let runs: Vec<RunRecord> = (0..12).map(|i| RunRecord { name: format!("run {i}"), ..run.clone() }).collect();
        let page = html(&runs);
        let keys = |text: &str| -> Vec<String> {
            text.split("<svg class=\"key\"").skip(1).map(|key| between(key, ">", "</svg>").to_string()).collect()
        };
        let named = keys(between(&page, "<div id=\"bar\">", "</div>"));
        let mut different = named.clone();
        different.sort_unstable();
        different.dedup();
        assert_eq!((named.len(), different.len()), (12, 12));
        assert_eq!(page.matches("<div id=\"bar\">").count(), 1);
        assert_eq!(keys(between(&page, "<h2>Results</h2>", "</table>")), named);
        for title in ["Training loss", "Validation loss", "Tokens a second"] {
            let figure = figure(&page, title);
            assert_eq!(keys(figure), named, "{title}");
            assert!(!between(figure, "<p class=\"legend\">", "</p>").contains("run 3"), "named once");
            for (i, key) in named.iter().enumerate() {
                let line = between(figure, &format!("\" data-label=\"run {i}\""), "/>").len();
                let class = between(key, "class=\"", "\"");
                assert!(
                    line > 0 && figure.contains(&format!("<polyline class=\"{class}\" data-label=\"run {i}\"")),
                    "{title} {i}"
                );
            }
        }
    }

    #[test]
    fn only_the_pages_own_style_and_script_count() {
        let (mut run, _) = record("policy");
        run.name = "<img src=x onerror=alert(1)> \u{202e}\u{7}".into();
        run.samples[0].text = "</script><script>alert(1)</script>\u{2066}".into();
        let page = html(&[run]);
        let policy = between(&page, "Content-Security-Policy\" content=\"", "\"");
        assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
        for (tag, what) in [("style", "style-src"), ("script", "script-src")] {
            let own = between(&page, &format!("<{tag}>"), &format!("</{tag}>"));
            let sum = base64(&Sha256::digest(own));
            assert!(policy.contains(&format!("{what} 'sha256-{sum}'")), "{tag}");
            assert_eq!(page.matches(&format!("<{tag}")).count(), 1);
        }
        // such attributes would be of no use under this policy
        let body = between(&page, "<body>", "<script>");
        assert!(!body.contains(" style=") && !body.contains("<img"), "what came from outside is text");
        assert!(
            page.contains(r"&lt;img src=x onerror=alert(1)&gt; \u{202e}\u{7}")
                && page.contains(r"&lt;/script&gt;\u{2066}")
        );
    }

    #[test]
    fn results_and_texts() {
        let (mut run, _) = record("results");
        let r = &run.results;
        assert_eq!((run.state, r.steps, r.val_loss, r.best_step), (RunState::Unfinished, 5000, Some(2.5), 4000));
        assert_eq!((r.tokens, r.tok_s, run.first_loss), (500_000, 200.0, Some(7.0)));
        let mean = (4951..=5000).map(|n| 2.0 + 5.0 / f64::from(n)).sum::<f64>() / 50.0;
        assert!((r.train_loss.unwrap() - mean).abs() < 1e-12);
        let settings = |run: &RunRecord, key: &str| run.settings.get(key).cloned();
        assert_eq!(settings(&run, "rotary_scaling_factor").as_deref(), Some("8"));
        assert_eq!(settings(&run, "d_head"), None);
        run.set("min_learning_rate", &json!(0.1 * 0.003));
        assert_eq!(settings(&run, "min_learning_rate").as_deref(), Some("0.0003"));
        run.name = "<script>".into();
        let page = html(&[run.clone(), run]);
        assert!(page.contains("a &lt;b&gt; &amp; &quot;c&quot; &lt;|endoftext|&gt;"));
        assert_eq!(page.matches("<script>").count(), 1, "ours alone");
        assert!(page.contains("Nothing in their settings"));
    }
}
