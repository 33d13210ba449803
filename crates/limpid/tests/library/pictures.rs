//! Pictures are true: every colour is that of its value, every diagram has the model's own tensors and shapes.

use crate::random_config::{configs, fill};
use limpid::backend::Reference;
use limpid::config::{Activation, Axis, Config, Constants, Positions};
use limpid::draw::diagram::Diagram;
use limpid::draw::palette::{Palette, entry};
use limpid::draw::picture::{self, Chart, PlotPart, TensorPlot};
use limpid::draw::view::{Matrix, Paint};
use limpid::model::{Mode, Model};
use limpid::names::{self, Notation};
use limpid::ops::Batch;
use limpid::trace::labels::Labels;
use limpid::trace::{Keep, Trace};
use limpid_core::kernels::activate::reference::value;

const WORDS: [&str; 11] = ["a", "<b>", "c&d", "\"e\"", "f", "g", "h", "i", "j", "k", "l"];

fn tiny() -> Config {
    Config { vocab_size: 11, context_length: 6, d_model: 12, n_head: 3, n_layer: 2, d_ff: 17, ..Config::default() }
}

/// Runs `look` on a model with random weights at two sequences of five tokens.
fn seen<T>(config: &Config, look: impl FnOnce(&Trace, &Labels) -> T) -> T {
    let model = Model::new(config, Mode::Inspect { batch: 2, context: 5 }).unwrap();
    let mut reference = Reference::new(&model);
    fill(&model, &mut reference, 3);
    let ids: Vec<u32> = vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
    let mut batch = Batch::of_sequences(ids.clone(), ids.iter().map(|id| id + 1).collect(), 5);
    if config.n_segment > 0 {
        batch.segments = vec![0; 10];
    }
    let trace = Trace::run(&model, Box::new(reference), &batch, Keep::All).unwrap();
    let labels = trace.labels(&|id| WORDS.get(id as usize).map_or_else(|| id.to_string(), |word| word.to_string()));
    look(&trace, &labels)
}

fn matrix(plot: &TensorPlot) -> &Matrix {
    match &plot.parts[..] {
        [PlotPart::Matrix(matrix)] => matrix,
        other => panic!("{other:?}"),
    }
}

fn chart(part: &PlotPart) -> &Chart {
    match part {
        PlotPart::Chart(chart) => chart,
        other => panic!("{other:?}"),
    }
}

/// What stands in a tag's attribute, for every such tag.
fn attributes<'a>(svg: &'a str, tag: &str, attribute: &str) -> Vec<&'a str> {
    let of = |part: &'a str| part.split_once(&format!("{attribute}=\""))?.1.split_once('"').map(|(value, _)| value);
    svg.split(&format!("<{tag} ")).skip(1).map(|part| of(part.split_once('>').unwrap().0).unwrap_or("")).collect()
}

fn hex(palette: Palette, v: f32, range: (f64, f64)) -> String {
    let [r, g, b] = palette.colour(entry(v.into(), range));
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// R305, R306: of one head, by tokens; hidden cells have no colour.
#[test]
fn scores_are_darker_where_they_are_greater() {
    seen(&tiny(), |trace, labels| {
        let name = "blocks.1.attn.hook_attn_scores";
        let all = trace.get(name).unwrap();
        let plot = picture::plot(trace, &format!("{name}[1,2]"), labels).unwrap();
        let (m, svg) = (matrix(&plot), plot.svg(None));
        let own: Vec<f32> = all.values[(3 + 2) * 25..][..25].to_vec();
        assert_eq!((m.size, &m.values), ([5, 5], &own));
        assert_eq!(m.rows, ["g", "h", "i", "j", "k"]);
        let visible: Vec<f32> = own.iter().copied().filter(|v| v.is_finite()).collect();
        assert_eq!(visible.len(), 15);
        let range = visible.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min((*v).into()), b.max((*v).into())));
        let want: Vec<String> = visible.iter().map(|v| hex(Palette::Ink, *v, range)).collect();
        let cells: Vec<&str> = attributes(&svg, "rect", "fill").into_iter().filter(|fill| fill.len() == 7).collect();
        assert_eq!(cells[1..16], want); // the first is in the pattern of what is not finite
        // the ends and the middle of the legend are the exact values
        for v in [range.0, (range.0 + range.1) / 2.0, range.1] {
            assert!(svg.contains(&format!(">{}</text>", v as f32)), "{v} in {svg}");
        }
        assert!(svg.contains("hidden by the mask") && !svg.contains("not finite:"), "{svg}");
        // before the mask all cells have one
        let raw = picture::plot(trace, "blocks.1.attn.hook_raw_scores[1,2]", labels).unwrap().svg(None);
        assert_eq!(attributes(&raw, "rect", "fill").iter().filter(|fill| fill.len() == 7).count(), 1 + 25);
    });
}

/// R303.
#[test]
fn positions_are_viridis() {
    let config = Config { positions: Positions::Sinusoidal, ..tiny() };
    seen(&config, |trace, labels| {
        let plot = picture::plot(trace, "hook_pos_embed[0]", labels).unwrap();
        let (m, svg) = (matrix(&plot), plot.svg(None));
        assert_eq!((m.size, m.range(m.palette())), ([5, 12], (-1.0, 1.0)));
        let cells: Vec<String> = m.values.iter().map(|v| hex(Palette::Viridis, *v, (-1.0, 1.0))).collect();
        let found = attributes(&svg, "rect", "fill");
        assert!(found.windows(60).any(|part| part == cells), "{svg}");
        // R350: a row for each position, whatever the sequence
        assert_eq!(m.values, matrix(&picture::plot(trace, "hook_pos_embed[1]", labels).unwrap()).values);
        let curves = picture::plot(trace, "curves(hook_pos_embed[0,*,2:4])", labels).unwrap();
        let points =
            |i: usize| -> Vec<(f64, f64)> { (0..5).map(|t| (t as f64, m.values[t * 12 + i].into())).collect() };
        let series = &chart(&curves.parts[0]).series;
        assert_eq!([&series[0].points, &series[1].points], [&points(2), &points(3)]);
        assert_eq!(series[1].label, "3");
    });
    seen(&tiny(), |trace, labels| {
        let own = trace.get("pos_embed.weight").unwrap();
        for name in ["W_pos", "pos_embed.W_pos", "pos_embed.weight"] {
            assert_eq!(matrix(&picture::plot(trace, name, labels).unwrap()).values, own.values);
        }
    });
}

/// R322.
#[test]
fn cosines_of_all_rows() {
    seen(&tiny(), |trace, labels| {
        let plot = picture::plot(trace, "cos(hook_embed[0])", labels).unwrap();
        let (m, x) = (matrix(&plot), trace.get("hook_embed").unwrap());
        let row = |i: usize| &x.values[i * 12..(i + 1) * 12];
        let dot = |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
        for (i, j) in (0..5).flat_map(|i| (0..5).map(move |j| (i, j))) {
            let want = dot(row(i), row(j)) / (dot(row(i), row(i)) * dot(row(j), row(j))).sqrt();
            assert!((f64::from(m.values[i * 5 + j]) - want).abs() < 1e-6);
        }
        assert_eq!((&m.rows, &m.columns), (&labels.tokens[0], &labels.tokens[0]));
    });
}

/// R326.
#[test]
fn the_figure_of_the_gelus() {
    let plot = limpid::draw::picture::gelu(Constants::USUAL, &[]);
    let functions = &chart(&plot.parts[0]).series;
    let order = [Activation::GeluErf, Activation::GeluTanh, Activation::GeluSigmoid, Activation::Relu];
    for (series, activation) in functions.iter().zip(order) {
        assert!(series.points.iter().all(|(x, y)| *y == value(activation, Constants::USUAL, *x)), "{}", series.label);
    }
    // the approximation by tanh is within 0.0005 of it, the one by the sigmoid within 0.021
    let far = |i: usize| chart(&plot.parts[1]).series[i].points.iter().fold(0.0, |far: f64, (_, y)| far.max(y.abs()));
    assert!(far(0) < 5e-4 && far(0) > 4e-4 && far(1) < 0.021 && far(1) > 0.02, "{} {}", far(0), far(1));
    let svg = plot.svg(None);
    assert_eq!((svg.matches("class=\"l s").count(), plot.parts.len()), (2 * 6, 2));
    // the model's own constants
    for (alpha, beta, gamma) in [(1.5, 0.9, 0.1), (1.0, 0.5, 0.044715), (-1.0, 0.8, 0.0)] {
        let config = Config { gelu_alpha: alpha, gelu_beta: beta, gelu_gamma: gamma, ..tiny() };
        seen(&config, |trace, labels| {
            let plot = picture::plot(trace, "gelu", labels).unwrap();
            let by_tanh = &chart(&plot.parts[0]).series[1];
            let formula = |x: f64| {
                let z = alpha * x;
                x * 0.5 * (1.0 + (beta * (z + gamma * z.powi(3))).tanh())
            };
            assert!(by_tanh.points.iter().all(|(x, y)| (y - formula(*x)).abs() < 1e-12), "{}", by_tanh.label);
            assert_eq!(by_tanh.label, format!("by tanh, α {alpha}, β {beta}, γ {gamma}"));
        });
    }
    // a model's own values are counted beneath
    seen(&tiny(), |trace, labels| {
        let plot = picture::plot(trace, "gelu", labels).unwrap();
        let bars = chart(&plot.parts[2]);
        let values = [0, 1].map(|i| trace.get(&format!("blocks.{i}.mlp.hook_pre")).unwrap().values).concat();
        let inside = values.iter().filter(|v| v.abs() < 4.0).count() as f64 / values.len() as f64;
        assert!((bars.series[0].points.iter().map(|(_, share)| share).sum::<f64>() - inside).abs() < 1e-9);
    });
}

/// Names by pattern, and what a picture is of by an index.
#[test]
fn patterns_and_indices() {
    seen(&tiny(), |trace, labels| {
        let names = trace.matching("blocks.*.attn.hook_pattern").unwrap();
        assert_eq!(names, ["blocks.0.attn.hook_pattern", "blocks.1.attn.hook_pattern"]);
        assert_eq!(trace.matching("*.W_?.grad").unwrap().len(), 6);
        assert_eq!(trace.matching("logits").unwrap(), ["logits"]);
        let says = |asked: &str| trace.matching(asked).unwrap_err().to_string();
        assert_eq!(
            says("blocks.*.attn.hook_patern"),
            "`blocks.*.attn.hook_patern`: no tensor matches; did you mean `blocks.0.attn.hook_pattern`?"
        );
        let heads = picture::plot(trace, "blocks.*.attn.hook_pattern[0]", labels).unwrap();
        assert_eq!(heads.parts.len(), 6);
        let svg = heads.svg(None);
        for caption in ["layer 0, head 0", "layer 1, head 2"] {
            assert!(svg.contains(caption), "{caption}");
        }
        // one row, one column
        let row = picture::plot(trace, "blocks.0.attn.hook_pattern[0,1,4]", labels).unwrap();
        let pattern = trace.get("blocks.0.attn.hook_pattern").unwrap();
        let chart = chart(&row.parts[0]);
        let want: Vec<(f64, f64)> = (0..5).map(|j| (j as f64, pattern.at(&[0, 1, 4, j]).unwrap().into())).collect();
        assert_eq!((chart.bars, &chart.series[0].points), (true, &want));
        let q = trace.get("blocks.0.attn.hook_q").unwrap();
        let part = picture::plot(trace, "blocks.0.attn.hook_q[1,2:4,0]", labels).unwrap();
        let m = matrix(&part);
        assert_eq!((m.size, m.at(1, 3)), ([2, 4], q.at(&[1, 3, 0, 3]).unwrap()));
        assert_eq!(m.rows, ["i", "j"]);
        for (asked, why) in [
            ("blocks.0.attn.hook_pattern[0,3]", "the axis head has 3 places, 0 to 2; `3` is outside"),
            ("hook_embed[0,1,2,3]", "has 3 axes: [batch pos d_model]"),
            ("hook_embed[0", "ends with `]`"),
            ("hook_embed[x]", "`x` is no index of the axis batch: give a number, a:b or *"),
            ("hook_embed[0,3:2]", "outside"),
            ("hook_embd", "did you mean `hook_embed`?"),
            ("cos(hook_embd)", "did you mean `hook_embed`?"),
            ("curves(hook_embed[0])", "has 12 columns"),
        ] {
            let error = picture::plot(trace, asked, labels).unwrap_err().to_string();
            assert!(error.contains(why), "{asked}: {error}");
        }
    });
}

trait At {
    fn at(&self, i: usize, j: usize) -> f32;
}
impl At for Matrix {
    fn at(&self, i: usize, j: usize) -> f32 {
        self.values[i * self.size[1] + j]
    }
}

/// A file of pixels has every cell's colour in its middle; what is hidden is white.
#[test]
fn pixels_are_the_values() {
    seen(&tiny(), |trace, labels| {
        let plot = picture::plot(trace, "blocks.0.attn.hook_pattern[0,0]", labels).unwrap();
        let (m, png, svg) = (matrix(&plot), plot.png(None), plot.svg(None));
        let (wide, pixels) = decode(&png);
        // the first cell's place, from the same layout
        let whole = svg.split("<g class=\"ink\">").nth(1).unwrap();
        let number = |tag: &str, name: &str| -> Vec<f64> {
            attributes(whole, tag, name).into_iter().filter_map(|v| v.parse().ok()).collect()
        };
        let [x, y, w, h] = ["x", "y", "width", "height"].map(|name| number("rect", name)[0]);
        for (i, j) in (0..5).flat_map(|i| (0..5).map(move |j| (i, j))) {
            // beside the number that stands in the middle
            let at = [2.0 * (x + (j as f64 + 0.08) * w), 2.0 * (y + (i as f64 + 0.2) * h)].map(|v| v as usize);
            let found = &pixels[3 * (at[1] * wide + at[0])..][..3];
            let want = if j > i { [255; 3] } else { Palette::Ink.colour(entry(m.at(i, j).into(), (0.0, 1.0))) };
            assert_eq!(found, want, "row {i}, column {j}");
        }
    });
}

/// Width and pixels of an RGB file, whose compressed part is read by the gzip that the tests have.
fn decode(png: &[u8]) -> (usize, Vec<u8>) {
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
    let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut packed, wide) = (8, vec![], number(16));
    while at < png.len() {
        let (long, kind) = (number(at), &png[at + 4..at + 8]);
        if kind == b"IDAT" {
            packed.extend(&png[at + 8..at + 8 + long]);
        }
        at += 12 + long;
    }
    assert_eq!(&png[png.len() - 8..], b"IEND\xae\x42\x60\x82", "the checksum of an empty last chunk");
    let mut raw = vec![];
    std::io::Read::read_to_end(&mut flate2::read::ZlibDecoder::new(&packed[..]), &mut raw).unwrap();
    (wide, raw.chunks(1 + 3 * wide).flat_map(|row| row[1..].to_vec()).collect())
}

/// Of more cells than a picture has room for, the greatest is seen; what is not finite is never lost; it says so.
#[test]
fn large_matrices_are_pooled() {
    let mut values = vec![0.25f32; 1000 * 900];
    values[555 * 900 + 444] = 1.0;
    values[999 * 900 + 899] = f32::NAN;
    let (index, axes) = (vec![], ["pos", "d_model"]);
    let scale = limpid::draw::view::HeatScale::Positive;
    let m = Matrix {
        tensor: "t".into(),
        index,
        size: [1000, 900],
        axes,
        rows: vec![],
        columns: vec![],
        values,
        hidden: vec![],
        scale,
    };
    let plot = TensorPlot { title: "t".into(), about: String::new(), parts: vec![PlotPart::Matrix(m.clone())] };
    let svg = plot.svg(None);
    assert!(svg.contains("each cell is the greatest of 2 x 2") && svg.contains("not finite: NaN or infinite"));
    assert!(svg.len() < 200_000, "{}", svg.len());
    let text = plot.text(Paint::Shades, &limpid::draw::table::TableOptions { width: 80, ..Default::default() });
    assert!(
        text.contains('█') && text.contains('?') && text.contains("[1,000 rows x 900 columns, each cell is the"),
        "{text}"
    );
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

/// Tokens may be anything; a file is well-formed XML whatever they are.
#[test]
fn hostile_words_are_only_text() {
    seen(&tiny(), |trace, labels| {
        let svg = picture::plot(trace, "blocks.0.attn.hook_pattern[0,0]", labels).unwrap().svg(None);
        assert!(svg.contains("&lt;b&gt;") && svg.contains("c&amp;d") && !svg.contains("<b>"), "{svg}");
        let mut labels = labels.clone();
        labels.tokens[0] = vec!["\u{0}".into(), "\u{fffe}".into(), "]]>".into(), "</svg>".into(), "é…".into()];
        for diagram in [Diagram::Input, Diagram::Loss] {
            let svg = diagram.of_run(trace, &labels, Notation::Limpid).unwrap();
            assert!(svg.matches("</svg>").count() == 1 && !svg.contains(['\u{0}', '\u{fffe}']), "{svg}");
        }
    });
}

/// R308: the block's diagram has every tensor of a block and its parameters, by name, with this model's shapes.
#[test]
fn a_diagram_names_every_tensor_with_its_shape() {
    for (i, config) in configs().iter().enumerate().step_by(7).chain([(0, &tiny())]) {
        let model = Model::new(config, Mode::Inspect { batch: 2, context: 5 }).unwrap();
        let svg = Diagram::Block.of_model(&model, Notation::Limpid).unwrap();
        let says = |text: &str| svg.contains(&format!(">{text}</text>"));
        for name in model.tensors.iter().map(|t| &t.name).chain(model.params.iter().map(|p| &p.name)) {
            if let Some(short) = name.strip_prefix("blocks.0.") {
                assert!(says(short), "{i}: {name} in {svg}");
                let symbol = names::called_within(name, config, Notation::Limpid, Some(0)).unwrap_or_default();
                assert!(says(&symbol), "{i}: {symbol} of {name}");
            }
        }
        let sizes = format!("(2, {}, 5, 5)", config.n_head);
        assert!(svg.contains(&sizes) && svg.contains(&format!("(2, 5, {})", config.d_model)), "{i}: {sizes}");
    }
}

#[test]
fn every_diagram_is_of_the_model() {
    for name in ["gpt2", "zero-to-hero", "decoder-readme", "formulated-bert", "nano"] {
        let config = Config::preset(name).unwrap();
        let model = Model::new(&config, Mode::Inspect { batch: 2, context: config.context_length }).unwrap();
        let all = Diagram::ALL.iter().copied().filter(|diagram| !diagram.needs_run());
        for (diagram, notation) in
            all.flat_map(|diagram| Notation::ALL.iter().map(move |notation| (diagram, *notation)))
        {
            let svg = diagram.of_model(&model, notation).unwrap();
            assert!(svg.starts_with("<svg ") && svg.contains("prefers-color-scheme:dark"), "{name}");
            let heads = notation.letter_in("head", &config);
            assert!(svg.contains(&format!(">{heads} ")), "{name} {diagram:?} {notation}");
            assert_eq!(Diagram::named(diagram.name()), Ok(diagram));
            // nothing is outside the picture
            let size = |name: &str| -> f64 { attributes(&svg, "svg", name)[0].parse().unwrap() };
            for (axis, n) in [("x", size("width")), ("y", size("height"))] {
                let places = ["rect", "text"].map(|tag| attributes(&svg, tag, axis)).concat();
                let outside = places.iter().filter_map(|v| v.parse::<f64>().ok()).find(|v| *v < 0.0 || *v > n);
                assert_eq!(outside, None, "{name} {diagram:?} {notation}: {axis} of {n}");
            }
        }
    }
    let config = Config::preset("gpt2").unwrap();
    let model = Model::new(&config, Mode::Inspect { batch: 1, context: 1024 }).unwrap();
    let svg = |diagram: Diagram| diagram.of_model(&model, diagram.notation()).unwrap();
    assert!(svg(Diagram::Model).contains("(V,C) = (50,257, 768)") && svg(Diagram::Model).contains(">12 blocks<"));
    assert!(
        svg(Diagram::Head).contains("(T,D) = (1,024, 64)") && svg(Diagram::Head).contains("(T,T) = (1,024, 1,024)")
    );
    assert!(svg(Diagram::Attention).contains("12 heads x 64 = 768 columns"));
    assert!(svg(Diagram::Training).contains("124,439,808 numbers"));
    for shape in ["(B,3C,T) = (1, 2,304, 1,024)", "(B,C,T,T) = (1, 768, 1,024, 1,024)", "(B,C,T) = (1, 768, 1,024)"] {
        assert!(svg(Diagram::Sketch).contains(shape), "{shape}");
    }
    assert!(svg(Diagram::Sketch).contains("each row summed"));
    let error = Diagram::named("blok").unwrap_err();
    assert!(error.contains("training") && error.ends_with("did you mean `block`?"), "{error}");
}

/// R313.
#[test]
fn layers_have_llm_cs_names() {
    let config = Config {
        vocab_size: 20,
        context_length: 8,
        d_model: 12,
        n_head: 3,
        d_ff: 48,
        n_layer: 2,
        ..Config::preset("llmc-gpt2").unwrap()
    };
    let model = Model::new(&config, Mode::Inspect { batch: 1, context: 8 }).unwrap();
    let svg = Diagram::Layers.of_model(&model, Diagram::Layers.notation()).unwrap();
    // its 16 parameters and 23 activations, and nothing else
    let words = "wte wpe ln1w ln1b qkvw qkvb attprojw attprojb ln2w ln2b fcw fcb fcprojw fcprojb lnfw lnfb encoded \
                 ln1 ln1_mean ln1_rstd qkv atty preatt att attproj residual2 ln2 ln2_mean ln2_rstd fch fch_gelu \
                 fcproj residual3 lnf lnf_mean lnf_rstd logits probs losses";
    for word in words.split(' ') {
        assert!(svg.contains(&format!(">{word}</text>")), "{word} in {svg}");
    }
    assert!(!svg.contains("hook_") && !svg.contains(">1/"), "{svg}");
}

/// Tensors, parameters and axes have the words of the notation that is asked for, in every diagram.
#[test]
fn a_diagram_speaks_in_the_notation_asked_for() {
    for config in configs().iter().step_by(11).chain([&tiny()]) {
        let model = Model::new(config, Mode::Inspect { batch: 2, context: 5 }).unwrap();
        for notation in Notation::ALL {
            let svg = |diagram: Diagram| diagram.of_model(&model, *notation).unwrap();
            let block = svg(Diagram::Block);
            let says = |svg: &str, text: &str| svg.contains(&format!(">{}</text>", text.replace('&', "&amp;")));
            let called = |name: &str| names::called_within(name, config, *notation, Some(0));
            let mut words = 0;
            for name in model.tensors.iter().map(|t| &t.name).chain(model.params.iter().map(|p| &p.name)) {
                if let (true, Some(word)) = (name.starts_with("blocks.0."), called(name)) {
                    assert!(says(&block, &word), "{notation}: {name} is {word} in {block}");
                    words += 1;
                }
            }
            assert!(words > 5, "{notation}: {words}");
            for axis in ["batch", "pos", "d_model", "head", "d_head", "d_ff", "d_vocab", "n_layer"] {
                let letter = notation.letter_in(axis, config);
                assert!(block.contains(&format!(">{letter} ")), "{notation}: {axis} is {letter} in {block}");
            }
            // the same names in the others
            for (diagram, name) in [
                (Diagram::Model, "blocks.0.hook_attn_out"),
                (Diagram::Head, "blocks.0.attn.hook_pattern"),
                (Diagram::Attention, "blocks.0.attn.out.weight"),
                (Diagram::Products, "blocks.0.attn.hook_pattern"),
                (Diagram::Layers, "blocks.0.hook_attn_out"),
                (Diagram::Sketch, "blocks.0.attn.hook_attn_scores"),
            ] {
                let word = called(name)
                    .filter(|_| model.tensor(name).is_some() || model.param(name).is_some())
                    .unwrap_or_default();
                assert!(word.is_empty() || says(&svg(diagram), &word), "{notation} {diagram:?}: {word}");
            }
        }
    }
}

/// R311, R312: words, ids, probabilities and losses are those of the run.
#[test]
fn the_input_and_the_loss_are_those_of_the_run() {
    seen(&tiny(), |trace, labels| {
        let input = Diagram::Input.of_run(trace, labels, Notation::Limpid).unwrap();
        for id in 0..10 {
            assert!(input.contains(&format!(">id {id}</text>")), "{id}");
        }
        assert!(input.contains("(B,T) = (2, 5)") && input.contains("&lt;b&gt;"), "{input}");
        let loss = Diagram::Loss.of_run(trace, labels, Notation::Limpid).unwrap();
        let (probs, losses) = (trace.get("probs").unwrap(), trace.get("losses").unwrap());
        for (n, l) in losses.values.iter().enumerate().take(6) {
            let p = probs.values[n * 11 + n + 1];
            assert!((f64::from(*l) + f64::from(p).ln()).abs() < 1e-5);
            assert!(loss.contains(&format!("-ln {p:.4} = {l:.4}")), "{n}");
        }
        let mean = losses.values.iter().map(|l| f64::from(*l)).sum::<f64>() / 10.0;
        assert!(loss.contains(&format!("= {mean:.4}; perplexity")), "{loss}");
        let bars = picture::plot(trace, "loss", labels).unwrap();
        let first = chart(&bars.parts[0]);
        let want: Vec<f64> = losses.values[..5].iter().map(|l| f64::from(*l)).collect();
        assert_eq!(first.series[0].points.iter().map(|(_, y)| *y).collect::<Vec<_>>(), want);
        assert_eq!(first.words[..4], ["<b>", "c&d", "\"e\"", "f"].map(limpid::trace::labels::label));
    });
}
