//! Counts and durations in Prometheus's text format 0.0.4. They contain no prompts and no answers.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Upper ends of a histogram's buckets, in seconds.
const SECONDS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// And in rows.
const ROWS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// What there is: name, type, what it counts.
const ALL: &[(&str, &str, &str)] = &[
    ("limpid_requests_total", "counter", "Requests answered, by endpoint and status."),
    ("limpid_requests_running", "gauge", "Sequences that the engine runs, and embeddings that are computed."),
    ("limpid_requests_waiting", "gauge", "Sequences whose prompt is not computed yet."),
    ("limpid_rejected_total", "counter", "Requests refused, by code."),
    ("limpid_cancelled_total", "counter", "Sequences whose client went away, before or during the answer."),
    ("limpid_prompt_tokens_total", "counter", "Tokens of prompts."),
    ("limpid_cached_tokens_total", "counter", "Tokens of prompts that were in the KV cache."),
    ("limpid_generated_tokens_total", "counter", "Tokens generated."),
    ("limpid_queue_seconds", "histogram", "From a request's arrival to the end of a sequence's prompt."),
    ("limpid_time_to_first_token_seconds", "histogram", "From a request's arrival to a sequence's first token."),
    ("limpid_inter_token_seconds", "histogram", "Between two tokens of a sequence."),
    ("limpid_turn_seconds", "histogram", "One run of the model."),
    ("limpid_turn_rows", "histogram", "Rows of one run of the model."),
    ("limpid_looking", "gauge", "Questions about the model's inside that are being answered, of at most four."),
    ("limpid_kv_blocks", "gauge", "Blocks of the KV cache, by what they hold."),
    ("limpid_weights_step", "gauge", "The step of training that the weights are of."),
    ("limpid_engine_failures_total", "counter", "Runs of the model that failed."),
    ("limpid_reloads_total", "counter", "Checkpoints found by --follow, by result."),
    ("limpid_model_info", "gauge", "The model, as labels."),
];

#[derive(Default)]
pub struct Metrics {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By name and labels.
    counters: BTreeMap<(&'static str, String), u64>,
    histograms: BTreeMap<&'static str, Histogram>,
}

#[derive(Default)]
struct Histogram {
    /// How many were in each bucket, and above the last.
    buckets: Vec<u64>,
    sum: f64,
}

/// Where a histogram's buckets end.
fn ends(name: &str) -> &'static [f64] {
    if name.ends_with("_seconds") { SECONDS } else { ROWS }
}

/// Labels as they are written: `{endpoint="/health",code="200"}`.
pub fn labels(of: &[(&str, &str)]) -> String {
    let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let all: Vec<String> = of.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
}

impl Metrics {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to a counter.
    pub fn add(&self, name: &'static str, with: &[(&str, &str)], count: usize) {
        *self.state().counters.entry((name, labels(with))).or_default() += count as u64;
    }

    /// Adds a value to a histogram.
    pub fn observe(&self, name: &'static str, value: f64) {
        let ends = ends(name);
        let mut state = self.state();
        let histogram = state.histograms.entry(name).or_default();
        histogram.buckets.resize(ends.len() + 1, 0);
        histogram.buckets[ends.partition_point(|end| *end < value)] += 1;
        histogram.sum += value;
    }

    /// The page. `gauges` are values of now, each with its labels.
    pub fn page(&self, gauges: &[(&str, String, f64)]) -> String {
        let state = self.state();
        let mut page = String::new();
        for (name, kind, help) in ALL {
            let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}"); // a String takes everything
            let mut line = |name: &str, labels: &str, value: f64| {
                let _ = writeln!(page, "{name}{labels} {value}");
            };
            let counters = state.counters.iter().filter(|((of, _), _)| of == name);
            counters.for_each(|((_, labels), count)| line(name, labels, *count as f64));
            gauges.iter().filter(|(of, ..)| of == name).for_each(|(_, labels, value)| line(name, labels, *value));
            let Some(histogram) = state.histograms.get(name) else { continue };
            let mut below = 0;
            let ends = ends(name).iter().map(f64::to_string).chain(["+Inf".into()]);
            for (end, count) in ends.zip(&histogram.buckets) {
                below += count;
                line(&format!("{name}_bucket"), &labels(&[("le", &end)]), below as f64);
            }
            line(&format!("{name}_sum"), "", histogram.sum);
            line(&format!("{name}_count"), "", below as f64);
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_prometheus() {
        let metrics = Metrics::default();
        metrics.add("limpid_requests_total", &[("endpoint", "/health"), ("code", "200")], 2);
        [0.0005, 0.001, 0.0011, 100.0].iter().for_each(|value| metrics.observe("limpid_turn_seconds", *value));
        let page = metrics.page(&[("limpid_model_info", labels(&[("model", "a\"b\\c\nd")]), 1.0)]);
        for line in [
            "# TYPE limpid_requests_total counter",
            "limpid_requests_total{endpoint=\"/health\",code=\"200\"} 2",
            "limpid_turn_seconds_bucket{le=\"0.001\"} 2",
            "limpid_turn_seconds_bucket{le=\"0.0025\"} 3",
            "limpid_turn_seconds_bucket{le=\"60\"} 3",
            "limpid_turn_seconds_bucket{le=\"+Inf\"} 4",
            "limpid_turn_seconds_count 4",
            "limpid_model_info{model=\"a\\\"b\\\\c\\nd\"} 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
        // every line is a comment or a name, perhaps labels, and a number; every name was announced
        let mut announced = vec![];
        for line in page.lines() {
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                announced.push(kind.split(' ').next().unwrap());
            } else if !line.starts_with("# HELP ") {
                let (name, value) = line.rsplit_once(' ').unwrap();
                assert!(value.parse::<f64>().is_ok(), "{line}");
                let name = name.split('{').next().unwrap();
                let stem = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
                assert_eq!(announced.last(), Some(&stem), "{line}");
            }
        }
    }
}
