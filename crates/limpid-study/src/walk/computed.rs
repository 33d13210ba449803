//! The numbers of `printed.json`, computed again: a table from each key to what computes it.

use super::live::Run;
use super::plain::{concat, diag, matmul, one_hot, segments, stack, wide};
use super::printed::{self, Check, Leaf, numbers, rows, shapes_of};
use super::{At, Live, Result, Show, WalkError, WalkStep, Worked, worked};
use limpid_core::backend::{Backend, Reference};
use limpid_core::config::{Activation, Config, Constants, DropoutScale, Mask, NormKind};
use limpid_core::kernels::activate;
use limpid_core::model::tables::sinusoidal_one_based;
use limpid_core::model::{Mode, Model};
use limpid_core::ops::{Batch, MemorySpace, Span};
use limpid_core::optimizer::Method;
use limpid_data::toys::Toy;
use limpid_tokenizer::{Tokenizer, to_one_based};
use limpid_trace::Keep;
use serde::Deserialize;
use serde_json::Value;

impl Live {
    /// A step's printed numbers, compared with the live ones; none on other models, weights and texts than the walk's
    /// own, which have numbers of their own.
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

/// Where printed numbers are, and what they are computed from.
struct Place<'a> {
    live: &'a mut Live,
    step: &'a WalkStep,
    /// In `printed.json`.
    key: &'a str,
    /// What stands in the key where the table has `*`.
    part: &'a str,
}

/// Computes the numbers of a place again.
type Compute = fn(&mut Place<'_>) -> Result<Vec<Leaf>>;

/// Every key of `printed.json` that a step names, but those of shapes, and how its numbers are computed.
const COMPUTED: &[(&str, Compute)] = &[
    // ---- ids and words
    ("s0.vocabulary", |place| {
        let tokenizer = own_tokenizer(place.live)?;
        let all: Vec<u32> = (0..tokenizer.vocab_size() as u32).collect();
        Ok(words(tokenizer.pieces(&all)?))
    }),
    ("s3.vocabulary", |place| Ok(ids(own_tokenizer(place.live)?.encode("around cat dog helping is jumps man")?))),
    ("s0.ids_from_0", |place| Ok(ids(ids_of_s0(place.live)?))),
    ("s0.ids_from_1", |place| Ok(ids(to_one_based(&ids_of_s0(place.live)?)?))),
    ("s0.three", |_| Ok(ids(Tokenizer::named("s0-three")?.encode("cat dog mouse")?))),
    ("s0.one_hot", |_| {
        let tokenizer = Tokenizer::named("s0-three")?;
        Ok(reals(one_hot(&tokenizer.encode("mouse dog")?, tokenizer.vocab_size())))
    }),
    ("s0.picked_rows", |place| place.live.run(&At::default(), picked_rows)),
    ("s1.chapter.ids", |_| Ok(ids(chapter()?))),
    ("s1.chapter.pieces", |_| Ok(words(cl100k()?.pieces(&chapter()?)?))),
    ("s1.chapter.printed_ids", |_| {
        // a lone space before each of the last three
        let own = chapter()?;
        let space = cl100k()?.encode(" ")?;
        let (first, last) = own.split_at(own.len() - 3);
        Ok(ids(first.iter().chain(last.iter().flat_map(|id| space.iter().chain([id]))).copied()))
    }),
    ("s1.cl100k.size", |_| Ok(counts([cl100k()?.vocab_size()]))),
    ("s1.cl100k.greatest_rank", |_| {
        let tokenizer = cl100k()?;
        let special: Vec<u32> = tokenizer.specials().iter().map(|(_, id)| *id).collect();
        let unused = |id: u32| tokenizer.piece(id).is_ok_and(|piece| piece == format!("<unused {id}>"));
        let ordinary = |id: &u32| !special.contains(id) && !unused(*id);
        Ok(ids((0..tokenizer.vocab_size() as u32).rev().find(ordinary)))
    }),
    ("s1.cl100k.id_100069", |_| Ok(words([cl100k()?.decode(&[100_069])?]))),
    ("s1.rows.*.ids", |place| Ok(ids(cl100k()?.encode(&place.window()?)?))),
    ("s1.rows.*.text", |place| Ok(words([place.window()?]))),
    ("s3.byte_pairs", |_| {
        let text = "dog jumps around cat man is helping cat";
        Ok(ids([cl100k()?.encode(text)?, Tokenizer::named("gpt2")?.encode(text)?].concat()))
    }),
    ("s3.inputs", |place| place.live.run(&At::default(), |run| Ok(ids(run.trace.batch().tokens.clone())))),
    ("s3.targets", |place| {
        place.live.run(&At::default(), |run| Ok(ids((0..run.sequences).flat_map(|b| run.targets(b)).flatten())))
    }),
    ("s3.generated.words", |place| Ok(words(Generated::of(place.live)?.pieces))),
    ("s3.generated.shapes", |place| Ok(counts(Generated::of(place.live)?.shapes.concat()))),
    ("s3.generated.index_of_jumps", |place| Ok(ids(place.live.ready(&At::default())?.ids("jumps")?))),
    // the document has the place in what is written
    ("s3.generated.printed_index_of_jumps", |place| {
        Ok(counts(Generated::of(place.live)?.pieces.iter().position(|piece| piece == "jumps")))
    }),
    // ---- embeddings and positions
    ("s0.positions", |_| {
        let row =
            |i: usize, columns: std::ops::Range<usize>, d: usize| columns.map(move |j| sinusoidal_one_based(i, j, d));
        let small = row(0, 0..4, 4).chain(row(1, 0..4, 4));
        Ok(reals(small.chain(row(0, 0..6, 64)).chain(row(0, 63..64, 64))))
    }),
    ("s1.lookup", |place| {
        let (_, table) = worked::looked_up();
        let [_, columns] = printed::place(place.key);
        Ok(reals(table.iter().flat_map(|row| columns.iter().map(|c| f64::from(row[*c])))))
    }),
    ("s1.positions", |place| place.cells(&At::default(), "hook_pos_embed", 0)),
    ("s1.columns", |place| place.live.run(&At::default(), nearest_columns)),
    ("s1.embedding", |place| place.cells(&on("second-run"), "hook_embed", 0)),
    ("s1.sums.batch*", |place| {
        let sequence = place.number()?;
        place.cells(&on("second-run"), "hook_embed_sum", sequence)
    }),
    // ---- attention
    ("s0.heads", |_| {
        let one = |[d_model, n_head, feature]: [usize; 3]| {
            let config = Config { d_model, n_head, ..Config::default() };
            let (head, own) = worked::split(&config, feature);
            [d_model, n_head, head * config.d_head() + own, head, own]
        };
        Ok(counts([[64, 4, 37], [6, 3, 5], [768, 12, 700]].into_iter().flat_map(one)))
    }),
    ("s0.mask.binary", |_| Ok(reals(mask(1.0, 0.0)))),
    ("s0.mask.additive", |_| Ok(reals(mask(0.0, f64::NEG_INFINITY)))),
    ("s0.mask.one_minus", |_| Ok(reals(mask(1.0, 0.0).iter().map(|m| 1.0 - m)))),
    ("s2.mask", |_| Ok(reals(mask(1.0, f64::NEG_INFINITY)))),
    ("s1.scale", |place| {
        let config = place.config()?;
        Ok(reals([config.d_head() as f64, 1.0 / config.score_scale(0)]))
    }),
    ("s1.attention.scores", |place| place.cells(&on("first-run"), "blocks.0.attn.hook_raw_scores", 0)),
    ("s1.attention.weights", |place| place.cells(&on("first-run"), "blocks.0.attn.hook_pattern", 0)),
    // ---- norms, activations, dropout, softmax, losses, updates
    ("s0.layer_norm.x", |place| Ok(reals(rows_to_normalise(place.step).0.concat()))),
    ("s0.layer_norm.root", |place| Ok(normalised(place.step, NormKind::Layer))),
    ("s0.layer_norm.deviation", |place| Ok(normalised(place.step, NormKind::LayerStd))),
    ("s0.gelu.x", |place| Ok(reals(places_of(place.step)))),
    ("s0.gelu.erf", |place| Ok(values_of(place.step, Activation::GeluErf))),
    ("s0.gelu.tanh", |place| Ok(values_of(place.step, Activation::GeluTanh))),
    ("s2.gelu.sigmoid", |place| Ok(values_of(place.step, Activation::GeluSigmoid))),
    ("s0.gelu.least_erf", |_| Ok(reals(worked::least(Activation::GeluErf)))),
    ("s0.gelu.least_tanh", |_| Ok(reals(worked::least(Activation::GeluTanh)))),
    ("s2.gelu.least", |_| Ok(reals(worked::least(Activation::GeluSigmoid)))),
    ("s2.cross_entropy", |place| {
        let (scores, target, smoothing) = shown(place.step, |work| match work {
            Worked::CrossEntropy { scores, target, smoothing } => Some((scores.clone(), target.clone(), *smoothing)),
            _ => None,
        });
        Ok(reals([0.0, smoothing].map(|s| worked::cross_entropy(&scores, &target, s))))
    }),
    ("s0.dropout", |place| {
        let (x, mask, p) = shown(place.step, |work| match work {
            Worked::Dropout { x, mask, p } => Some((x.clone(), mask.clone(), *p)),
            _ => None,
        });
        let row = |scale| {
            let [kept, _] = worked::dropout_factors(scale, p);
            x.iter().zip(&mask).map(|(x, m)| x * m * kept).collect::<Vec<f64>>()
        };
        Ok(reals([row(DropoutScale::Inverted), row(DropoutScale::Unscaled)].concat()))
    }),
    ("s0.sums", |place| {
        place.live.run(&At::default(), |run| {
            let v = run.config().vocab_size;
            Ok(reals(wide(&run.get("probs")?.values).chunks_exact(v).map(|row| row.iter().sum())))
        })
    }),
    ("s0.first_loss", |place| place.first_loss()),
    ("s3.first_loss", |place| place.first_loss()),
    ("s2.reductions", |_| {
        let [first, second] = TRUE.map(|p| worked::losses(&[p.ln(), (1.0 - p).ln()])[0]);
        let total = first + second;
        Ok(reals([total, total / 2.0]))
    }),
    ("s2.without_log", |_| Ok(reals([-TRUE[0] - TRUE[1]]))),
    ("s3.logits", |_| Ok(reals(Classified::run()?.logits))),
    ("s3.probs", |_| Ok(reals(Classified::run()?.probs))),
    ("s3.losses", |_| Ok(reals(Classified::run()?.losses))),
    ("s3.log_sum_exp", |_| {
        let found = Classified::run()?;
        Ok(reals([found.losses[0] + found.logits[0]]))
    }),
    ("s3.update", |place| {
        let weight = shown(place.step, |work| match work {
            Worked::Update { w, g, learning_rate, .. } => Some([*w, *g, *learning_rate]),
            _ => None,
        });
        Ok(reals([Method::Sgd, Method::Adam].map(|method| worked::stepped(weight, method))))
    }),
    // ---- small matrices
    ("s2.diag", |_| Ok(reals(diag(&[1.0, 2.0, 3.0])))),
    ("s2.stack", |_| Ok(reals(stack(2, &[7.0, 8.0])))),
    ("s2.concat", |_| {
        let part = |from: u8| (0..4).map(|i| f64::from(from + i)).collect::<Vec<f64>>();
        Ok(reals(concat(&[part(1), part(5), part(9)], 2)))
    }),
    ("s2.segments", |_| Ok(reals(segments(&[0.0, 0.0, 1.0, 1.0], &[1.0, 2.0], &[10.0, 20.0])))),
    // ---- shapes and counts
    ("s0.d_ff", |place| {
        let config = place.config()?;
        Ok(reals([config.d_ff as f64 / config.d_model as f64]))
    }),
    ("s1.blocks", |_| {
        let presets = ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"].map(Config::preset);
        Ok(counts(presets.into_iter().map(|config| Ok(config?.n_layer)).collect::<Result<Vec<_>>>()?))
    }),
    ("s1.heads.logits", |place| {
        let ready = place.live.ready(&At::default())?;
        // the textbook's vocabulary is the preset's
        let preset = Config::preset("zero-to-hero")?;
        Ok(counts([ready.size("batch"), ready.size("pos"), preset.vocab_size]))
    }),
    ("s3.shapes.flat", |place| {
        place.live.run(&At::default(), |run| {
            let batch = run.trace.batch();
            let logits = run.trace.model().logits().map_or((0, 0), |region| region.for_batch(batch).shape());
            Ok(counts([logits.0, logits.1, batch.targets.len()]))
        })
    }),
    ("s3.parameters", |place| Ok(counts([built(&place.config()?)?.parameter_count()]))),
    ("s2.parameters.*", |place| Ok(counts([built(&Config::preset(place.part)?)?.parameter_count()]))),
    ("s4.parameters", |_| Ok(counts([built(&Config::preset("llmc-gpt2")?)?.program.size(MemorySpace::Param)]))),
    ("s4.layout", |_| {
        let model = built(&Config::preset("llmc-gpt2")?)?;
        let starts = model.layout().into_iter().map(|stack| stack.at);
        let starts: Vec<usize> = starts.chain([model.program.size(MemorySpace::Param)]).collect();
        Ok(counts(starts.windows(2).flat_map(|ends| [ends[1] - ends[0], ends[0]])))
    }),
    ("s4.activations", |_| Ok(counts([activations(&Config::preset("llmc-gpt2")?, 4, 64, false)]))),
    ("s4.activations_with_4c", |_| Ok(counts([activations(&Config::preset("llmc-gpt2")?, 4, 64, true)]))),
];

/// The probabilities of the true tokens in the example of losses.
const TRUE: [f64; 2] = [0.7, 0.8];

/// The numbers of a key, computed again.
pub(super) fn computed(live: &mut Live, step: &WalkStep, key: &str) -> Result<Vec<Leaf>> {
    if let Some(of) = shapes_of(key) {
        return shapes(live, of);
    }
    let found = COMPUTED.iter().find_map(|(pattern, compute)| Some((starred(pattern, key)?, compute)));
    match found {
        Some((part, compute)) => compute(&mut Place { live, step, key, part }),
        None => Err(WalkError::Lacks(format!("nothing here computes the printed `{key}`"))),
    }
}

/// What a key has where a pattern has `*`, if the rest is the same; empty if the pattern has none.
fn starred<'a>(pattern: &str, key: &'a str) -> Option<&'a str> {
    match pattern.split_once('*') {
        Some((start, end)) => key.strip_prefix(start)?.strip_suffix(end),
        None => (key == pattern).then_some(""),
    }
}

impl Place<'_> {
    /// The number in the key.
    fn number(&self) -> Result<usize> {
        let wrong = |_| WalkError::Lacks(format!("the printed `{}`: `{}` is not a number", self.key, self.part));
        self.part.parse().map_err(wrong)
    }

    /// The text of the window that the key numbers, as the model has it, by its own tokenizer.
    fn window(&mut self) -> Result<String> {
        let at = self.number()?;
        let ready = self.live.ready(&At::default())?;
        let lacks = || WalkError::Lacks(format!("the printed `{}`: there is no window {at}", self.key));
        Ok(own_tokenizer(self.live)?.decode(ready.sequences.get(at).ok_or_else(lacks)?)?)
    }

    fn config(&mut self) -> Result<Config> {
        Ok(self.live.ready(&At::default())?.config.clone())
    }

    /// The printed cells of a tensor: of one sequence, or of its first head.
    fn cells(&mut self, at: &At, name: &str, sequence: usize) -> Result<Vec<Leaf>> {
        let [rows, columns] = printed::place(self.key);
        self.live.run(at, |run| {
            let tensor = run.get(name)?;
            let [high, wide] = [2, 1].map(|back| tensor.shape[tensor.shape.len() - back]);
            let matrix = &tensor.values[sequence * high * wide..][..high * wide];
            Ok(reals(rows.iter().flat_map(|row| columns.iter().map(move |c| f64::from(matrix[row * wide + c])))))
        })
    }

    /// The loss of a model that knows nothing.
    fn first_loss(&mut self) -> Result<Vec<Leaf>> {
        Ok(reals([worked::losses(&vec![0.0; self.config()?.vocab_size])[0]]))
    }
}

/// The documents' example as ids.
fn ids_of_s0(live: &mut Live) -> Result<Vec<u32>> {
    let ready = live.ready(&At::default())?;
    let documents = Toy::named("s0").map_or(&[][..], |toy| toy.documents);
    Ok(documents.iter().map(|text| ready.ids(text)).collect::<Result<Vec<_>>>()?.concat())
}

/// Which rows of the embedding one-hot rows pick, counted from 1.
fn picked_rows(run: &mut Run) -> Result<Vec<Leaf>> {
    let table = wide(&run.get("embed.weight")?.values);
    let v = run.config().vocab_size;
    let c = table.len() / v;
    let picked = matmul(&one_hot(&[1, 0, v as u32 - 1], v), &table, v);
    let row = |own: &[f64]| table.chunks_exact(c).position(|row| row == own).map_or(f64::NAN, |at| at as f64 + 1.0);
    Ok(reals(picked.chunks_exact(c).map(row)))
}

/// The column of the live table that is nearest to each printed one.
fn nearest_columns(run: &mut Run) -> Result<Vec<Leaf>> {
    let live = run.get("hook_pos_embed")?;
    let printed = rows("s1.positions");
    let width = live.shape[2];
    let off = |k: usize, c: usize| {
        let cells = printed.iter().enumerate();
        cells.map(|(t, row)| (row[k] - f64::from(live.values[t * width + c])).powi(2)).sum::<f64>()
    };
    let nearest = |k: usize| (0..width).min_by(|a, b| off(k, *a).total_cmp(&off(k, *b))).unwrap_or(0);
    Ok(counts((0..printed.first().map_or(0, Vec::len)).map(nearest)))
}

/// The rows that the step normalises, and their epsilon.
fn rows_to_normalise(step: &WalkStep) -> (Vec<Vec<f64>>, f64) {
    shown(step, |work| match work {
        Worked::Norms { rows, eps, .. } => Some((rows.clone(), *eps)),
        _ => None,
    })
}

fn normalised(step: &WalkStep, kind: NormKind) -> Vec<Leaf> {
    let (rows, eps) = rows_to_normalise(step);
    reals(worked::normalised(&rows, eps, kind))
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

fn own_tokenizer(live: &mut Live) -> Result<Tokenizer> {
    Ok(live.ready(&At::default())?.tokenizer.clone().ok_or(limpid::Error::NoTokenizer)?)
}

fn cl100k() -> Result<Tokenizer> {
    Ok(Tokenizer::named("cl100k_base")?)
}

fn chapter() -> Result<Vec<u32>> {
    Ok(cl100k()?.encode("Chapter 1: Building Rapport and Capturing")?)
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

/// What a model makes of the printed logits: they are the bias of its head, which has no weights.
struct Classified {
    /// Of one token, as the next.
    logits: Vec<f64>,
    probs: Vec<f64>,
    /// With each word once as the target.
    losses: Vec<f64>,
}

impl Classified {
    fn run() -> Result<Classified> {
        let logits = numbers("s3.logits");
        let v = logits.len();
        let config = Config { vocab_size: v, ..Config::preset("decoder-readme")? };
        let model = Model::new(&config, Mode::Inspect { batch: v, context: 1 })?;
        let mut reference = Reference::new(&model);
        let bias =
            model.param("unembed.bias").ok_or_else(|| WalkError::Lacks("this preset's head has no bias".into()))?;
        let values: Vec<f32> = logits.iter().map(|logit| *logit as f32).collect();
        reference.write(bias.region, &values)?;
        let batch = Batch::of_sequences(vec![1; v], (0..v as u32).collect(), 1);
        let trace = limpid_trace::Trace::run(&model, Box::new(reference), &batch, Keep::All)?;
        let of = |name: &str| -> Result<Vec<f64>> { Ok(wide(&trace.get(name)?.values)) };
        Ok(Classified { logits: of("logits")?[..v].to_vec(), probs: of("probs")?[..v].to_vec(), losses: of("losses")? })
    }
}

/// What the model writes after "dog".
struct Generated {
    pieces: Vec<String>,
    /// Of the input, before each token and after the last.
    shapes: Vec<Vec<usize>>,
}

impl Generated {
    fn of(live: &mut Live) -> Result<Generated> {
        let ready = live.ready(&At::default())?;
        let mut written = ready.ids("dog")?;
        let mut shapes = vec![];
        for _ in 0..2 {
            let (next, shape) = live.run_on(&At::default(), std::slice::from_ref(&written), |run: &mut Run| {
                let (input, probs, v) = (run.get("input")?, run.get("probs")?, run.config().vocab_size);
                let row = &probs.values[probs.values.len() - v..];
                Ok(((0..v as u32).max_by(|a, b| row[*a as usize].total_cmp(&row[*b as usize])), input.shape))
            })?;
            shapes.push(shape);
            written.extend(next);
        }
        shapes.push(vec![1, written.len()]);
        Ok(Generated { pieces: written.iter().map(|id| ready.piece(*id)).collect(), shapes })
    }
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

/// Numbers in llm.c's 23 activations of `b` sequences of `t` tokens; with (L,B,T,4C) for `fcproj`, as the wiki has it,
/// if `wide`.
fn activations(config: &Config, b: usize, t: usize, wide: bool) -> usize {
    let (l, c, h, v) = (config.n_layer, config.d_model, config.n_head, config.vocab_size.next_multiple_of(128));
    let (rows, layers) = (b * t, l * b * t);
    let fcproj = if wide { 4 * c } else { c };
    // encoded; ln1, atty, attproj, residual2, ln2, residual3; qkv; fch, fch_gelu; fcproj; two norms' moments; preatt,
    // att
    let own = rows * c + layers * (6 * c + 3 * c + 8 * c + fcproj + 4) + 2 * l * b * h * t * t;
    // lnf and its moments; logits, probs; losses
    own + rows * (c + 2 + 2 * v + 1)
}

#[cfg(test)]
mod tests {
    use super::super::{Walk, WalkOptions};
    use super::*;

    #[test]
    fn keys_are_found_whole() {
        assert_eq!(starred("s1.rows.*.ids", "s1.rows.12.ids"), Some("12"));
        assert_eq!(starred("s1.sums.batch*", "s1.sums.batch0"), Some("0"));
        assert_eq!(starred("s0.three", "s0.three"), Some(""));
        for (pattern, key) in [
            ("s1.rows.*.ids", "s1.rows.1.text"),
            ("s1.rows.*.ids", "s1.rows.ids"),
            ("s0.three", "s0.three.1"),
            ("s1.sums.batch*", "s1.sums"),
        ] {
            assert_eq!(starred(pattern, key), None, "{key}");
        }
    }

    /// No entry hides one below it.
    #[test]
    fn each_key_has_one_entry() {
        for (at, (pattern, _)) in COMPUTED.iter().enumerate() {
            let key = pattern.replace('*', "0");
            let first = COMPUTED.iter().position(|(other, _)| starred(other, &key).is_some());
            assert_eq!(first, Some(at), "{pattern}");
        }
    }

    #[test]
    fn what_cannot_be_computed_is_an_error() {
        let walk = Walk::named("s1").unwrap();
        let step = walk.steps[0].clone();
        let mut live = walk.live(WalkOptions::default());
        for (key, says) in [
            ("s1.sums.batchx", "the printed `s1.sums.batchx`: `x` is not a number"),
            ("s1.rows.-1.ids", "the printed `s1.rows.-1.ids`: `-1` is not a number"),
            ("s1.rows.99.text", "the printed `s1.rows.99.text`: there is no window 99"),
            ("s1.nothing", "nothing here computes the printed `s1.nothing`"),
        ] {
            assert_eq!(computed(&mut live, &step, key).unwrap_err().to_string(), says);
        }
    }
}
