//! The numbers that the documents print (`printed.json`), and whether the live ones equal them.
//!
//! A step's [`Printed`] names a place in `printed.json`. [`Live::checks`] computes the numbers that belong there again: by the walk's models and
//! scenes, by its tokenizers and presets, by limpid's own operations; none is read out of the file that it is compared with. What the
//! file has under `given` a document gives as the input of others; under `shapes` are the tensors whose shapes are printed.

use super::live::Run;
use super::plain::{concat, diag, one_hot, segments, stack, wide};
use super::{At, Live, Result, Show, WalkError, WalkStep, Worked, worked};
use limpid_base::units::commas;
use limpid_core::backend::{Backend, Reference};
use limpid_core::config::{Activation, Config, Constants, DropoutScale, Mask, NormKind};
use limpid_core::kernels::activate;
use limpid_core::model::tables::sinusoidal_one_based;
use limpid_core::model::{Mode, Model};
use limpid_core::ops::{Batch, MemorySpace, Span};
use limpid_core::optimizer::Method;
use limpid_tokenizer::{Tokenizer, to_one_based};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// A number, or a table of them, that a document prints.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Printed {
    /// Where it is in `printed.json`: `s1.positions`.
    pub golden: String,
    /// How the live number stands to it.
    #[serde(rename = "as")]
    pub stands: As,
    /// What it is.
    pub what: String,
}

/// How a live number stands to a printed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum As {
    /// The document prints it, and it is met.
    Equal,
    /// The document prints it, and a model was given it: it is shown, not checked.
    Given,
    /// The document prints another, and this is right.
    Corrected,
    /// The document prints it, and it is wrong: computed as the document has it, it comes out so.
    Wrong,
    /// The document has symbols alone; these are numbers for them.
    Constructed,
}

/// A printed number or word.
#[derive(Clone, Debug, PartialEq)]
pub enum Leaf {
    /// A number; the file has `"-inf"` for −∞.
    Number(f64),
    /// A word.
    Word(String),
}

impl From<f64> for Leaf {
    fn from(number: f64) -> Leaf {
        Leaf::Number(number)
    }
}
impl From<&str> for Leaf {
    fn from(word: &str) -> Leaf {
        if word == "-inf" { Leaf::Number(f64::NEG_INFINITY) } else { Leaf::Word(word.into()) }
    }
}

impl std::fmt::Display for Leaf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Leaf::Number(number) if *number >= 0.0 && number.fract() == 0.0 && *number < 1e15 => {
                f.write_str(&commas(*number as u64))
            }
            Leaf::Number(number) => write!(f, "{}", (number * 1e6).round() / 1e6),
            Leaf::Word(word) => write!(f, "{word:?}"),
        }
    }
}

/// Printed numbers, compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// What was compared.
    pub printed: Printed,
    /// How many numbers and words it is.
    pub count: usize,
    /// What came of it, in a sentence.
    pub text: String,
    /// Whether it holds.
    pub holds: bool,
    /// The live numbers, in the order of the printed ones.
    #[serde(skip)]
    pub live: Vec<Leaf>,
}

/// The places where two lists differ by more than `within`.
pub fn differences(printed: &[Leaf], live: &[Leaf], within: f64) -> Vec<usize> {
    let same = |at: usize| match (printed.get(at), live.get(at)) {
        (Some(Leaf::Number(a)), Some(Leaf::Number(b))) => a == b || (a - b).abs() <= within,
        (a, b) => a == b,
    };
    (0..printed.len().max(live.len())).filter(|at| !same(*at)).collect()
}

impl Live {
    /// A step's printed numbers, compared with the live ones; none on other models, weights and texts than the walk's own, which have
    /// numbers of their own.
    ///
    /// # Errors
    /// If a model cannot be made or run.
    pub fn checks(&mut self, step: &WalkStep) -> Result<Vec<Check>> {
        if !self.is_own() {
            return Ok(vec![]);
        }
        step.printed.iter().map(|printed| Ok(Check::new(printed, computed(self, step, &printed.golden)?))).collect()
    }
}

impl Check {
    fn new(printed: &Printed, live: Vec<Leaf>) -> Check {
        let wanted = leaves(&printed.golden);
        let off = differences(&wanted, &live, within(&printed.golden));
        let (count, what) = (wanted.len(), &printed.what);
        let met = match printed.stands {
            As::Equal => "as printed",
            As::Given => "given, so as printed",
            As::Corrected => "computed here; the document prints others",
            As::Wrong => "computed as the document does it, which is wrong",
            As::Constructed => "as worked out by hand",
        };
        let many = commas(count as u64);
        let text = match off.first() {
            None => match (&live[..], printed.stands) {
                ([one], As::Equal) => format!("{what}: {one}, as printed"),
                ([one], As::Corrected) => format!("{what}: {one}; the document prints another"),
                ([one], As::Wrong | As::Given) => format!("{what}: {one}, {met}"),
                ([one], As::Constructed) => format!("{what}: {one}"),
                (_, As::Equal | As::Constructed) => format!("{what}: {many} of {many} {met}"),
                _ => format!("{what}: {many}, {met}"),
            },
            Some(at) => {
                let of = |all: &[Leaf]| all.get(*at).map_or("nothing".into(), Leaf::to_string);
                let (wanted, live) = (of(&wanted), of(&live));
                format!("{what}: {} of {count} differ; number {} is {live}, printed {wanted}", off.len(), at + 1)
            }
        };
        Check { printed: printed.clone(), count, text, holds: off.is_empty(), live }
    }
}

// ---- what is printed

fn all() -> &'static Value {
    static ALL: OnceLock<Value> = OnceLock::new();
    ALL.get_or_init(|| {
        serde_json::from_str(include_str!("printed.json")).expect("printed.json is JSON: a test reads it")
    })
}

/// What `printed.json` has under a key: `s1.rows.0.ids`.
pub(super) fn golden(key: &str) -> Option<&'static Value> {
    key.split('.').try_fold(all(), |value, part| match value {
        Value::Array(list) => list.get(part.parse::<usize>().ok()?),
        _ => value.get(part),
    })
}

/// All numbers and words under a key, in their order, fields by their names; none if there is no such key.
pub fn leaves(key: &str) -> Vec<Leaf> {
    fn each(value: &Value, to: &mut Vec<Leaf>) {
        match value {
            Value::Number(n) => to.extend(n.as_f64().map(Leaf::Number)),
            Value::String(word) => to.push(word.as_str().into()),
            Value::Array(list) => list.iter().for_each(|value| each(value, to)),
            Value::Object(fields) => {
                let fields: BTreeMap<&String, &Value> = fields.iter().collect();
                fields.into_values().for_each(|value| each(value, to));
            }
            _ => {}
        }
    }
    let mut all = vec![];
    golden(key).into_iter().for_each(|value| each(value, &mut all));
    all
}

/// All numbers under a key, in their order.
pub fn numbers(key: &str) -> Vec<f64> {
    leaves(key)
        .into_iter()
        .filter_map(|leaf| if let Leaf::Number(number) = leaf { Some(number) } else { None })
        .collect()
}

/// A table; its rows may differ in length.
pub fn rows(key: &str) -> Vec<Vec<f64>> {
    table(golden(key))
}

/// What a document gives as the input of the numbers under a key: its part of that name.
pub fn given(key: &str, part: &str) -> Vec<Vec<f64>> {
    table(all()["given"][key].get(part))
}

fn table(value: Option<&Value>) -> Vec<Vec<f64>> {
    value.and_then(|value| serde_json::from_value(value.clone()).ok()).unwrap_or_default()
}

/// How far a live number may be from a printed one: half of its last digit, or the rounding of the document's own arithmetic. It is
/// written for a key or for one that it begins with; else numbers are exact.
pub fn within(key: &str) -> f64 {
    let own = |end: usize| all()["within"].get(&key[..end]).and_then(Value::as_f64);
    let ends = key.match_indices('.').map(|(at, _)| at).chain([key.len()]);
    ends.filter_map(own).next_back().unwrap_or(0.0)
}

/// Every key under which there are numbers or words: `s1.positions.3.7`.
pub fn places() -> Vec<String> {
    fn each(value: &Value, key: String, to: &mut Vec<String>) {
        match value {
            Value::Array(list) => list.iter().enumerate().for_each(|(i, value)| each(value, format!("{key}.{i}"), to)),
            Value::Object(fields) => fields.iter().for_each(|(name, value)| each(value, format!("{key}.{name}"), to)),
            _ => to.push(key),
        }
    }
    let mut to = vec![];
    super::Walk::ALL.iter().for_each(|name| each(&all()[*name], name.to_string(), &mut to));
    to
}

// ---- the same numbers, live

/// The columns of 64 that "Zero-to-Hero" prints.
pub(super) fn columns() -> Vec<usize> {
    numbers("s1.columns").iter().map(|column| *column as usize).collect()
}

fn words(words: impl IntoIterator<Item = impl Into<String>>) -> Vec<Leaf> {
    words.into_iter().map(|word| Leaf::Word(word.into())).collect()
}
fn reals(numbers: impl IntoIterator<Item = f64>) -> Vec<Leaf> {
    numbers.into_iter().map(Leaf::Number).collect()
}
fn counts(numbers: impl IntoIterator<Item = usize>) -> Vec<Leaf> {
    reals(numbers.into_iter().map(|n| n as f64))
}
fn ids(ids: impl IntoIterator<Item = u32>) -> Vec<Leaf> {
    reals(ids.into_iter().map(f64::from))
}

fn on(name: &str) -> At {
    At { on: Some(name.into()), ..At::default() }
}

/// The numbers of a key, computed again.
fn computed(live: &mut Live, step: &WalkStep, key: &str) -> Result<Vec<Leaf>> {
    let here = At::default();
    if let Some(of) = all()["shapes"].get(key) {
        return shapes(live, of);
    }
    Ok(match key {
        // ---- ids and words
        "s0.vocabulary" => {
            let tokenizer = own_tokenizer(live)?;
            let all: Vec<u32> = (0..tokenizer.vocab_size() as u32).collect();
            words(tokenizer.pieces(&all)?)
        }
        "s3.vocabulary" => ids(own_tokenizer(live)?.encode("around cat dog helping is jumps man")?),
        "s0.ids_from_0" | "s0.ids_from_1" => {
            let ready = live.ready(&here)?;
            let toy = limpid_data::toys::Toy::named("s0").map_or(&[][..], |toy| toy.documents);
            let zero = toy.iter().map(|text| ready.ids(text)).collect::<Result<Vec<_>>>()?.concat();
            ids(if key == "s0.ids_from_0" { zero } else { to_one_based(&zero)? })
        }
        "s0.three" => ids(Tokenizer::named("s0-three")?.encode("cat dog mouse")?),
        "s0.one_hot" => {
            let tokenizer = Tokenizer::named("s0-three")?;
            reals(one_hot(&tokenizer.encode("mouse dog")?, tokenizer.vocab_size()))
        }
        "s0.picked_rows" => live.run(&here, |run| {
            let (table, v) = (wide(&run.get("embed.weight")?.values), run.config().vocab_size);
            let c = table.len() / v;
            let picked = super::plain::matmul(&one_hot(&[1, 0, v as u32 - 1], v), &table, v);
            let row =
                |own: &[f64]| table.chunks_exact(c).position(|row| row == own).map_or(f64::NAN, |at| at as f64 + 1.0);
            Ok(reals(picked.chunks_exact(c).map(row)))
        })?,
        "s1.chapter.ids" => ids(chapter()?),
        "s1.chapter.pieces" => words(cl100k()?.pieces(&chapter()?)?),
        "s1.chapter.printed_ids" => {
            // a lone space before each of the last three
            let (own, space) = (chapter()?, cl100k()?.encode(" ")?);
            let (first, last) = own.split_at(own.len() - 3);
            ids(first.iter().chain(last.iter().flat_map(|id| space.iter().chain([id]))).copied())
        }
        "s1.cl100k.size" => counts([cl100k()?.vocab_size()]),
        "s1.cl100k.greatest_rank" => {
            let tokenizer = cl100k()?;
            let special: Vec<u32> = tokenizer.specials().iter().map(|(_, id)| *id).collect();
            let unused = |id: u32| tokenizer.piece(id).is_ok_and(|piece| piece == format!("<unused {id}>"));
            let ordinary = |id: &u32| !special.contains(id) && !unused(*id);
            ids((0..tokenizer.vocab_size() as u32).rev().find(ordinary))
        }
        "s1.cl100k.id_100069" => words([cl100k()?.decode(&[100_069])?]),
        _ if key.starts_with("s1.rows.") => {
            let (at, part) = key[8..].split_once('.').unwrap_or(("", ""));
            let at: usize = at.parse().unwrap_or(usize::MAX);
            // the window as the model has it, by its own tokenizer
            let window = live.ready(&here)?.sequences.get(at).cloned().unwrap_or_default();
            let text = own_tokenizer(live)?.decode(&window)?;
            if part == "ids" { ids(cl100k()?.encode(&text)?) } else { words([text]) }
        }
        "s3.byte_pairs" => {
            let text = "dog jumps around cat man is helping cat";
            ids([cl100k()?.encode(text)?, Tokenizer::named("gpt2")?.encode(text)?].concat())
        }
        "s3.inputs" => live.run(&here, |run| Ok(ids(run.trace.batch().tokens.clone())))?,
        "s3.targets" => live.run(&here, |run| Ok(ids((0..run.sequences).flat_map(|b| run.targets(b)).flatten())))?,
        _ if key.starts_with("s3.generated.") => generated(live, key)?,

        // ---- embeddings and positions
        "s0.positions" => {
            let row = |i: usize, columns: std::ops::Range<usize>, d: usize| {
                columns.map(move |j| sinusoidal_one_based(i, j, d))
            };
            let small = row(0, 0..4, 4).chain(row(1, 0..4, 4));
            reals(small.chain(row(0, 0..6, 64)).chain(row(0, 63..64, 64)))
        }
        "s1.positions" => table_of(live, &here, "hook_pos_embed", 0)?,
        "s1.columns" => live.run(&here, |run| {
            // the column of the live table that is nearest to each printed one
            let (live, printed) = (run.get("hook_pos_embed")?, rows("s1.positions"));
            let width = live.shape[2];
            let off = |k: usize, c: usize| {
                let cells = printed.iter().enumerate();
                cells.map(|(t, row)| (row[k] - f64::from(live.values[t * width + c])).powi(2)).sum::<f64>()
            };
            let nearest = |k: usize| (0..width).min_by(|a, b| off(k, *a).total_cmp(&off(k, *b))).unwrap_or(0);
            Ok(counts((0..printed.first().map_or(0, Vec::len)).map(nearest)))
        })?,
        "s1.embedding" => table_of(live, &on("printed-embedding"), "hook_embed", 0)?,
        _ if key.starts_with("s1.sums.batch") => {
            table_of(live, &on("printed-embedding"), "hook_embed_sum", key[13..].parse().unwrap_or(0))?
        }

        // ---- attention
        "s0.heads" => {
            let one = |[d_model, n_head, feature]: [usize; 3]| {
                let config = Config { d_model, n_head, ..Config::default() };
                let (head, own) = worked::split(&config, feature);
                [d_model, n_head, head * config.d_head() + own, head, own]
            };
            counts([[64, 4, 37], [6, 3, 5], [768, 12, 700]].into_iter().flat_map(one))
        }
        "s0.mask.binary" => reals(mask(1.0, 0.0)),
        "s0.mask.additive" => reals(mask(0.0, f64::NEG_INFINITY)),
        "s0.mask.one_minus" => reals(mask(1.0, 0.0).iter().map(|m| 1.0 - m)),
        "s2.mask" => reals(mask(1.0, f64::NEG_INFINITY)),
        "s1.scale" => {
            let config = live.ready(&here)?.config.clone();
            reals([config.d_head() as f64, 1.0 / config.score_scale(0)])
        }
        "s1.attention.rows" => {
            let seen =
                |i: &usize| Span { row: 0, rows: 3, past: 0, valid: 3, ..Span::default() }.reach(Mask::Causal, *i);
            let row = |printed: &Vec<f64>| (0..3).find(|i| seen(i) == printed.len());
            counts(rows("s1.attention.weights").iter().filter_map(row))
        }
        "s1.attention.scores" | "s1.attention.weights" => live.run(&on("printed-scores"), |run| {
            let name = if key.ends_with("scores") { "hook_raw_scores" } else { "hook_pattern" };
            let own = run.get(&format!("blocks.0.attn.{name}"))?;
            let t = own.shape[3];
            // of weights those that are not 0
            let end = |i: usize| if key.ends_with("scores") { t } else { i + 1 };
            Ok(reals((0..t).flat_map(|i| wide(&own.values[i * t..][..end(i)]))))
        })?,
        "s1.attention_ends" => {
            let scores = given(key, "scores");
            reals(scores.iter().zip(&rows(key)).flat_map(|(s, p)| worked::end_weights(s, p)))
        }

        // ---- norms, activations, dropout, softmax, losses, updates
        "s0.layer_norm.x" | "s0.layer_norm.root" | "s0.layer_norm.deviation" => {
            let (rows, eps) = shown(step, |work| match work {
                Worked::Norms { rows, eps, .. } => Some((rows.clone(), *eps)),
                _ => None,
            });
            reals(match key {
                "s0.layer_norm.x" => rows.concat(),
                "s0.layer_norm.root" => worked::normalised(&rows, eps, NormKind::Layer),
                _ => worked::normalised(&rows, eps, NormKind::LayerStd),
            })
        }
        "s0.gelu.x" => reals(places_of(step)),
        "s0.gelu.erf" => values_of(step, Activation::GeluErf),
        "s0.gelu.tanh" => values_of(step, Activation::GeluTanh),
        "s2.gelu.sigmoid" => values_of(step, Activation::GeluSigmoid),
        "s0.gelu.least_erf" => reals(worked::least(Activation::GeluErf)),
        "s0.gelu.least_tanh" => reals(worked::least(Activation::GeluTanh)),
        "s2.gelu.least" => reals(worked::least(Activation::GeluSigmoid)),
        "s0.dropout" => {
            let (x, mask, p) = shown(step, |work| match work {
                Worked::Dropout { x, mask, p } => Some((x.clone(), mask.clone(), *p)),
                _ => None,
            });
            let row = |scale| {
                let [kept, _] = worked::kept(scale, p);
                x.iter().zip(&mask).map(|(x, m)| x * m * kept).collect::<Vec<f64>>()
            };
            reals([row(DropoutScale::Inverted), row(DropoutScale::Unscaled)].concat())
        }
        "s0.sums" => live.run(&here, |run| {
            let v = run.config().vocab_size;
            Ok(reals(wide(&run.get("probs")?.values).chunks_exact(v).map(|row| row.iter().sum())))
        })?,
        "s0.first_loss" | "s3.first_loss" => {
            let v = live.ready(&here)?.config.vocab_size;
            reals([worked::losses(&vec![0.0; v])[0]])
        }
        "s2.reductions" | "s2.without_log" => {
            let p = [0.7f64, 0.8];
            let losses = p.map(|p| worked::losses(&[p.ln(), (1.0 - p).ln()])[0]);
            let total = losses[0] + losses[1];
            if key == "s2.reductions" { reals([total, total / 2.0]) } else { reals([-p[0] - p[1]]) }
        }
        "s3.logits" | "s3.probs" | "s3.log_sum_exp" | "s3.losses" => classified(key)?,
        "s3.update" => {
            let weight = shown(step, |work| match work {
                Worked::Update { w, g, learning_rate, .. } => Some([*w, *g, *learning_rate]),
                _ => None,
            });
            reals([Method::Sgd, Method::Adam].map(|method| worked::stepped(weight, method)))
        }

        // ---- small matrices
        "s2.diag" => reals(diag(&[1.0, 2.0, 3.0])),
        "s2.stack" => reals(stack(2, &[7.0, 8.0])),
        "s2.concat" => {
            let part = |from: u8| (0..4).map(|i| f64::from(from + i)).collect::<Vec<f64>>();
            reals(concat(&[part(1), part(5), part(9)], 2))
        }
        "s2.segments" => reals(segments(&[0.0, 0.0, 1.0, 1.0], &[1.0, 2.0], &[10.0, 20.0])),

        // ---- shapes and counts
        "s0.d_ff" => {
            let config = live.ready(&here)?.config.clone();
            reals([config.d_ff as f64 / config.d_model as f64])
        }
        "s1.blocks" => {
            let presets = ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"].map(Config::preset);
            counts(presets.into_iter().map(|config| Ok(config?.n_layer)).collect::<Result<Vec<_>>>()?)
        }
        "s1.heads.logits" => {
            // the textbook's vocabulary is the preset's
            let (ready, preset) = (live.ready(&here)?, Config::preset("zero-to-hero")?);
            counts([ready.size("batch"), ready.size("pos"), preset.vocab_size])
        }
        "s3.shapes.flat" => live.run(&here, |run| {
            let (model, batch) = (run.trace.model(), run.trace.batch());
            let logits = model.logits().map_or((0, 0), |region| region.for_batch(batch).shape());
            Ok(counts([logits.0, logits.1, batch.targets.len()]))
        })?,
        "s3.parameters" => counts([built(&live.ready(&here)?.config)?.parameter_count()]),
        _ if key.starts_with("s2.parameters.") => {
            counts([built(&Config::preset(&key["s2.parameters.".len()..])?)?.parameter_count()])
        }
        "s4.parameters" => counts([built(&Config::preset("llmc-gpt2")?)?.program.size(MemorySpace::Param)]),
        "s4.layout" => {
            let model = built(&Config::preset("llmc-gpt2")?)?;
            let starts = model.layout().into_iter().map(|stack| stack.at);
            let starts: Vec<usize> = starts.chain([model.program.size(MemorySpace::Param)]).collect();
            counts(starts.windows(2).flat_map(|ends| [ends[1] - ends[0], ends[0]]))
        }
        "s4.activations" => counts([activations(&Config::preset("llmc-gpt2")?, 4, 64, false)]),
        "s4.activations_with_4c" => counts([activations(&Config::preset("llmc-gpt2")?, 4, 64, true)]),
        _ => return Err(WalkError::Lacks(format!("nothing here computes the printed `{key}`"))),
    })
}

fn own_tokenizer(live: &mut Live) -> Result<Tokenizer> {
    Ok(live.ready(&At::default())?.tokenizer.clone().ok_or(limpid::Error::NoTokenizer)?)
}

fn cl100k() -> Result<Tokenizer> {
    Ok(Tokenizer::named("cl100k_base")?)
}

fn chapter() -> Result<Vec<u32>> {
    Ok(cl100k()?.encode("Chapter 1: Building Rapport and Capturing")?)
}

/// The printed columns of a (B, 16, 64) tensor, for one sequence.
fn table_of(live: &mut Live, at: &At, name: &str, sequence: usize) -> Result<Vec<Leaf>> {
    live.run(at, |run| {
        let (tensor, columns) = (run.get(name)?, columns());
        let (t, width) = (tensor.shape[1], tensor.shape[2]);
        let own = wide(&tensor.values);
        let rows = own.chunks_exact(width).skip(sequence * t).take(t);
        Ok(reals(rows.flat_map(|row| columns.iter().map(|c| row[*c]))))
    })
}

/// The causal mask of four words: a number where a key is seen, and one where it is not.
fn mask(seen: f64, hidden: f64) -> Vec<f64> {
    let span = Span { row: 0, rows: 4, past: 0, valid: 4, ..Span::default() };
    (0..16).map(|at| if at % 4 < span.reach(Mask::Causal, at / 4) { seen } else { hidden }).collect()
}

/// What one of the step's computations takes.
fn shown<T: Default>(step: &WalkStep, pick: impl Fn(&Worked) -> Option<T>) -> T {
    let of = |view: &Show| if let Show::Worked { work, .. } = view { pick(work) } else { None };
    step.views.iter().find_map(of).unwrap_or_default()
}

/// The places at which the step shows functions.
fn places_of(step: &WalkStep) -> Vec<f64> {
    let at = |view: &Show| if let Show::Function { at, .. } = view { Some(at.clone()) } else { None };
    step.views.iter().find_map(at).unwrap_or_default()
}

fn values_of(step: &WalkStep, f: Activation) -> Vec<Leaf> {
    reals(places_of(step).into_iter().map(|x| activate::reference::value(f, Constants::USUAL, x)))
}

/// The printed logits as the bias of a head without weights: what a model makes of them.
fn classified(key: &str) -> Result<Vec<Leaf>> {
    let logits = numbers("s3.logits");
    let config = Config { vocab_size: logits.len(), ..Config::preset("decoder-readme")? };
    let v = logits.len();
    let model = Model::new(&config, Mode::Inspect { batch: v, context: 1 })?;
    let mut reference = Reference::new(&model);
    let bias = model.param("unembed.bias").ok_or_else(|| WalkError::Lacks("this preset's head has no bias".into()))?;
    let values: Vec<f32> = logits.iter().map(|logit| *logit as f32).collect();
    reference.write(bias.region, &values)?;
    // each word once as the target
    let batch = Batch::of_sequences(vec![1; v], (0..v as u32).collect(), 1);
    let trace = limpid_trace::Trace::run(&model, &mut reference, &batch, false)?;
    let of = |name: &str| -> Result<Vec<f64>> { Ok(wide(&trace.get(name)?.values)) };
    Ok(reals(match key {
        "s3.logits" => of("logits")?[..v].to_vec(),
        "s3.probs" => of("probs")?[..v].to_vec(),
        "s3.losses" => of("losses")?,
        _ => vec![of("losses")?[0] + of("logits")?[0]],
    }))
}

/// What the model writes after "dog".
fn generated(live: &mut Live, key: &str) -> Result<Vec<Leaf>> {
    let ready = live.ready(&At::default())?;
    let mut own = vec![ready.ids("dog")?];
    let mut sizes = vec![];
    for _ in 0..2 {
        let last = own[own.len() - 1].clone();
        let (next, size) = live.run_on(&At::default(), std::slice::from_ref(&last), |run: &mut Run| {
            let (input, probs, v) = (run.get("input")?, run.get("probs")?, run.config().vocab_size);
            let row = &probs.values[probs.values.len() - v..];
            Ok(((0..v as u32).max_by(|a, b| row[*a as usize].total_cmp(&row[*b as usize])), input.shape))
        })?;
        sizes.push(size);
        own.push(last.into_iter().chain(next).collect());
    }
    let last = &own[2];
    sizes.push(vec![1, last.len()]);
    let pieces: Vec<String> = last.iter().map(|id| ready.piece(*id)).collect();
    Ok(match key {
        "s3.generated.words" => words(pieces),
        "s3.generated.shapes" => counts(sizes.concat()),
        "s3.generated.index_of_jumps" => ids(ready.ids("jumps")?),
        // it stands at place 1 of what is written
        _ => counts(pieces.iter().position(|piece| piece == "jumps")),
    })
}

/// The tensors that printed shapes are of, and on what.
#[derive(Deserialize)]
struct Shapes {
    #[serde(flatten)]
    at: At,
    of: Vec<Shape>,
}

#[derive(Deserialize)]
struct Shape {
    name: String,
    #[serde(default)]
    heads_first: bool,
    /// Axes that the document leaves out: that of heads, or of sequences where there is one alone.
    #[serde(default)]
    without: Vec<String>,
}

fn shapes(live: &mut Live, of: &Value) -> Result<Vec<Leaf>> {
    let Shapes { at, of } = Shapes::deserialize(of).expect("printed.json is well written: a test reads it");
    live.run(&at, |run| {
        let mut all = vec![];
        for Shape { name, heads_first, without } in &of {
            let tensor = run.get(name)?;
            let tensor = if *heads_first { tensor.heads_first() } else { tensor };
            let axes = tensor.axes.iter().zip(tensor.shape);
            all.extend(axes.filter(|(axis, _)| !without.iter().any(|out| out == *axis)).map(|(_, size)| size));
        }
        Ok(counts(all))
    })
}

fn built(config: &Config) -> Result<Model> {
    Ok(Model::new(config, Mode::Decode { rows: 1, outputs: 1, blocks: 1 })?)
}

/// Numbers in llm.c's 23 activations of `b` sequences of `t` tokens; with (L,B,T,4C) for `fcproj`, as the wiki has it, if `wide`.
fn activations(config: &Config, b: usize, t: usize, wide: bool) -> usize {
    let (l, c, h, v) = (config.n_layer, config.d_model, config.n_head, config.vocab_size.next_multiple_of(128));
    let (rows, layers) = (b * t, l * b * t);
    let fcproj = if wide { 4 * c } else { c };
    // encoded; ln1, atty, attproj, residual2, ln2, residual3; qkv; fch, fch_gelu; fcproj; two norms' moments; preatt, att
    let own = rows * c + layers * (6 * c + 3 * c + 8 * c + fcproj + 4) + 2 * l * b * h * t * t;
    // lnf and its moments; logits, probs; losses
    own + rows * (c + 2 + 2 * v + 1)
}
