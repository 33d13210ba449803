//! Walks show what they say: every number of every figure is that of the tensor which its caption, its row or its
//! formula names. The walks' own models and texts; what documents print, and other models, are tests/study/walks.rs's.

use super::live::Run;
use super::*;
use limpid_core::config::{Axis, Config, Fields};
use limpid_draw::view::{Grid, Matrix, View};
use limpid_trace::names;

/// Every view of every step of every walk, its figures, and the run that they are of.
fn each(mut look: impl FnMut(&str, &WalkStep, &Show, &[Figure], &mut Run)) {
    for walk in Walk::all() {
        let steps = walk.steps.clone();
        let mut live = walk.live(WalkOptions::default());
        for step in &steps {
            for show in &step.views {
                let figures = views::show(&mut live, step, show).unwrap();
                let shown = match show {
                    Show::Picture { now: Some(now), .. } => now.as_ref(),
                    other => other,
                };
                let at = shown.at().cloned().unwrap_or_default();
                let name = format!("{} {}", live.walk().name, step.id);
                live.run(&at, |run| {
                    look(&name, step, shown, &figures, run);
                    Ok(())
                })
                .unwrap();
            }
        }
    }
}

/// The element of the tensor that a cell of a matrix stands for.
fn element(
    at: &str,
    matrix: &Matrix,
    tensor: &limpid_trace::NamedTensor,
    transposed: bool,
    d: usize,
    cell: [usize; 2],
) -> f32 {
    let ([row, column], [i, j]) = (matrix.axes, cell);
    let index: Vec<usize> = match &tensor.axes[..] {
        [_] => vec![i * matrix.size[1] + j],
        [_, _] if transposed => vec![j, i],
        [_, _] => vec![i, j],
        axes => {
            let place = |axis: &&'static str| match (matrix.index.iter().find(|(own, _)| own == axis), *axis) {
                (Some((_, n)), _) => *n,
                (_, "head") if column == "features" => j / d,
                (_, "d_head") if column == "features" => j % d,
                (_, "head") if row == "features" => i / d,
                (_, "d_head") if row == "features" => i % d,
                (_, "batch") if row == "batch · pos" => i / tensor.shape[1],
                (_, "pos") if row == "batch · pos" => i % tensor.shape[1],
                (_, axis) if axis == row => i,
                (_, axis) if axis == column => j,
                _ => 0,
            };
            axes.iter().map(place).collect()
        }
    };
    tensor.at(&index).unwrap_or_else(|| panic!("{at}: {} has no {index:?}", matrix.tensor))
}

/// A table or a heat map has the numbers of the tensor whose name stands above it, and is called what the document
/// calls that.
fn matrix_is_its_tensor(at: &str, show: &Show, figure: &Figure, matrix: &Matrix, run: &Run) -> bool {
    let Ok(tensor) = run.get(&matrix.tensor) else { return false }; // a mask, cosines, an example
    if matches!(show, Show::Table { sparse: true, .. }) {
        return false; // ids as the tokenizer had them
    }
    let transposed = matches!(show, Show::Table { part, .. } | Show::Heat { part, .. } if part.transpose);
    let d = run.config().d_head();
    for (n, shown) in matrix.values.iter().enumerate() {
        if matrix.hidden.get(n) == Some(&true) {
            continue;
        }
        let cell = [n / matrix.size[1], n % matrix.size[1]];
        let own = element(at, matrix, &tensor, transposed, d, cell);
        assert!(own == *shown, "{at}: {} {:?} {cell:?} is {own}, shown {shown}", matrix.tensor, matrix.index);
    }
    let one_head = tensor.axes.contains(&"head") && !matrix.axes.contains(&"features");
    let word = if one_head {
        names::called_by_head(&matrix.tensor, run.config(), run.notation, None)
    } else {
        names::called(&matrix.tensor, run.config(), run.notation)
    };
    if let Some(word) = word.filter(|word| word != "X_sum" && !figure.caption.is_empty()) {
        assert!(figure.caption.starts_with(&word), "{at}: {} is {word}, not {}", matrix.tensor, figure.caption);
    }
    true
}

/// What stands at the left of a row of numbers.
fn label(name: &str, run: &Run) -> String {
    let own = || name.rsplit('.').next().unwrap_or_default().replace("hook_normalized", "normalised");
    names::called(name, run.config(), run.notation).unwrap_or_else(own)
}

/// Row by row the tensors that the walk names, each under its own name.
fn rows_are_their_tensors(at: &str, of: &[String], [sequence, position]: [usize; 2], matrix: &Matrix, run: &Run) {
    assert_eq!(matrix.size[0], of.len(), "{at}");
    for (row, name) in of.iter().enumerate() {
        let tensor = run.get(name).unwrap();
        assert_eq!(matrix.rows[row], label(name, run), "{at}: row {row} is {name}");
        for (c, shown) in matrix.values[row * matrix.size[1]..][..matrix.size[1]].iter().enumerate() {
            let index = if tensor.shape.len() == 1 { vec![c] } else { vec![sequence, position, c] };
            assert_eq!(tensor.at(&index), Some(*shown), "{at}: row {row} is {name}");
        }
    }
}

/// A line for each tensor: its symbol, its shape, and a formula whose left side is the symbol and whose right side has
/// no word but the document's.
fn lines_are_their_tensors(at: &str, of: &[String], formulas: bool, grid: &Grid, run: &Run) {
    assert_eq!(grid.rows.len(), of.len(), "{at}");
    for (row, name) in grid.rows.iter().zip(of) {
        let (config, notation) = (run.config(), run.notation);
        let symbol = names::called(name, config, notation).unwrap_or_default();
        assert_eq!((&row[0], &row[1]), (name, &symbol), "{at}");
        let sizes: Vec<usize> = row[3].split(' ').map(|size| size.parse().unwrap()).collect();
        assert_eq!(sizes.iter().product::<usize>(), run.get(name).unwrap().values.len(), "{at}: {name}");
        assert_eq!(sizes.len(), row[2].split(' ').count(), "{at}: {name}");
        if formulas {
            let (left, right) = row[4].split_once(" = ").unwrap();
            let home = names::lookup(name).unwrap().1;
            let words = [Some(symbol), names::called_within(name, config, notation, home)];
            assert!(words.iter().flatten().any(|word| word == left), "{at}: {name} is {words:?}, not {left}");
            let internal = ["hook_", "blocks.", ".weight", ".bias"].into_iter().find(|part| right.contains(part));
            assert_eq!(internal, None, "{at}: {}", row[4]);
        }
    }
}

#[test]
#[ignore = "gate"]
fn every_figure_shows_the_tensor_that_it_names() {
    let (mut matrices, mut rows, mut lines) = (0, 0, 0);
    each(|at, step, show, figures, run| {
        for figure in figures {
            match (&figure.view, show) {
                (View::Matrix(matrix), Show::Worked { work: Worked::Sum { of, sequence, position }, .. }) => {
                    rows_are_their_tensors(at, of, [*sequence, *position], matrix, run);
                    rows += of.len();
                }
                (View::Matrix(matrix), Show::Worked { work: Worked::NormRow { position }, .. }) => {
                    // these models are pre-norm
                    let of = ["hook_resid_pre", "ln1.hook_normalized", "ln1.weight", "ln1.bias", "ln1.hook_out"];
                    rows_are_their_tensors(at, &of.map(|name| format!("blocks.0.{name}")), [0, *position], matrix, run);
                    rows += of.len();
                }
                (View::Matrix(matrix), _) => {
                    matrices += usize::from(matrix_is_its_tensor(at, show, figure, matrix, run));
                }
                (View::Grid(grid), Show::Shapes { of, formulas, .. }) => {
                    lines_are_their_tensors(at, of, *formulas, grid, run);
                    lines += of.len();
                }
                _ => {}
            }
        }
        // "Notations" has two lists of equations, of the first block and of later ones
        if at == "s0 blocks"
            && let (Show::Shapes { .. }, Some(View::Grid(grid))) = (show, figures.first().map(|figure| &figure.view))
        {
            let (first, later) = grid.rows.split_at(6);
            let differ = first.iter().zip(later).filter(|(a, b)| a[4] != b[4]);
            let differ: Vec<&str> = differ.map(|(a, _)| a[4].split(' ').next().unwrap()).collect();
            assert_eq!(differ, ["Z₁", "Z₃"]);
            assert!(step.see.contains("Two lines of the blocks differ, Z₁ and Z₃"), "{}", step.see);
        }
    });
    assert!(matrices > 120 && rows > 20 && lines > 60, "{matrices} matrices, {rows} rows, {lines} lines");
}

/// A walk on a model of this configuration, with random weights, as if it were the user's.
fn on(walk: &Walk, config: &Config) -> Live {
    let options = WalkOptions { model: Some("theirs".into()), ..WalkOptions::default() };
    walk.clone().live(options).with_users(config)
}

/// Sizes of heads, values and keys that have nothing to do with the stream's: every shape is said in letters that come
/// to its sizes, those of a tensor or parameter are its own, and what differs from the walk's model is said.
#[test]
fn shapes_are_those_of_a_model_with_sizes_of_its_own() {
    let below = |k: u64, site: u64, n: u64| 1 + limpid_core::numeric::random::below(3, site, k, n) as usize;
    let (mut tensors, mut rows) = (0, 0);
    for (walk, k) in Walk::all().iter().flat_map(|walk| (0..4).map(move |k| (walk, k))) {
        let base = walk.default_model().config().unwrap();
        let n_kv_head = below(k, 0, 2);
        let n_head = n_kv_head * below(k, 1, 2);
        let config = Config {
            d_model: n_head * (5 + below(k, 2, 5)),
            n_head,
            n_kv_head: Some(n_kv_head),
            d_head: Some(below(k, 3, 7)),
            d_v: Some(8 + below(k, 4, 5)),
            d_ff: 31 + below(k, 5, 6),
            vocab_size: 13,
            context_length: 4,
            n_layer: 2,
            ..base
        };
        let mut live = on(walk, &config);
        let said = live.differences().unwrap();
        for differs in ["d_head: this model has", "d_v: this model has"] {
            assert!(said.iter().any(|line| line.starts_with(differs)), "{} {said:?}", walk.name);
        }
        let ready = live.ready(&At::default()).unwrap();
        let size = |letters: &str| -> usize {
            let one = |letter: &str| -> usize {
                let own = walk.letters.iter().find(|(own, _)| own == letter).map(|(_, axis)| ready.size(axis));
                let other = || ["kv_head", "d_v"].into_iter().find(|axis| walk.notation.letter(axis) == letter);
                own.or_else(|| other().map(|axis| ready.size(axis))).unwrap_or_else(|| letter.parse().unwrap())
            };
            letters.split('·').map(one).product()
        };
        // others are of a model or a scene of the walk's own
        for step in walk.steps.iter().filter(|step| step.views.iter().all(|view| view.on().is_none())) {
            let shapes = live.shapes(step).unwrap();
            live.run(&At::default(), |run| {
                let names: Vec<String> =
                    run.trace.names().chain(run.trace.model().params.iter().map(|p| p.name.clone())).collect();
                let symbol = |name: &String| names::called_within(name, run.config(), run.notation, Some(0));
                for row in &shapes {
                    let said: Vec<usize> = row.letters.split(' ').map(size).collect();
                    assert_eq!(said, row.sizes, "{} {}: {row:?}", walk.name, step.id);
                    rows += 1;
                    for part in row.symbol.split(", ").filter(|part| *part != row.letters) {
                        let own = |name: &&String| {
                            name.starts_with("blocks.0.attn.") && symbol(name).as_deref() == Some(part)
                        };
                        let Some(name) = names.iter().find(own) else { continue };
                        // heads side by side or one by one, one sequence of several, a matrix as it is written
                        let values: usize = run.get(name).unwrap().shape.iter().product();
                        let n: usize = row.sizes.iter().product();
                        assert!(
                            [1, run.sequences]
                                .iter()
                                .any(|b| [1, n_head, n_kv_head].iter().any(|h| n * b * h == values)),
                            "{} {}: {name} {row:?}",
                            walk.name,
                            step.id
                        );
                        tensors += 1;
                    }
                }
                Ok(())
            })
            .unwrap();
            for show in step.views.iter().filter(|show| show.on().is_none()) {
                let Show::Shapes { of, at, .. } = show else { continue };
                let figures = views::show(&mut live, step, show).unwrap();
                live.run(at, |run| {
                    let View::Grid(grid) = &figures[0].view else { panic!("a grid") };
                    for (row, name) in grid.rows.iter().zip(of) {
                        let Ok(tensor) = run.get(name) else { continue };
                        let n: usize = row[3].split(' ').map(|size| size.parse::<usize>().unwrap()).product();
                        assert_eq!(n, tensor.values.len(), "{} {}: {row:?}", walk.name, step.id);
                    }
                    Ok(())
                })
                .unwrap();
            }
        }
    }
    assert!(tensors > 100 && rows > 500, "{tensors} of {rows}");
}

/// Every setting either makes a model one of another kind, of which a walk speaks, or is a size, or says what training
/// does.
#[test]
fn every_setting_is_of_a_kind_or_a_size() {
    const SIZES: [&str; 8] =
        ["vocab_size", "context_length", "d_model", "n_head", "n_layer", "d_ff", "norm_eps", "rotary_base"];
    const OTHER: [&str; 5] = ["rotary_", "dropout_", "attention_out_bias", "attention_scale_by_layer", "window_layers"];
    for (setting, _) in Config::default().fields() {
        let kind = kinds::KINDS.iter().any(|(name, _)| *name == setting.name);
        let other = SIZES.contains(&setting.name) || OTHER.iter().any(|begin| setting.name.starts_with(begin));
        assert!(kind || other, "{} is in no list", setting.name);
    }
    for (name, parts) in kinds::KINDS {
        let of = |walk: &Walk| {
            walk.steps.iter().any(|step| {
                let views = serde_json::to_string(&step.views).unwrap();
                parts.iter().any(|part| views.contains(part))
            })
        };
        assert!(Walk::all().iter().any(of), "no step shows {name}");
    }
}

/// The command that draws a document's picture draws what stands below it: that tensor, that part, of weights trained
/// or not, on that model.
#[test]
fn a_picture_is_of_what_stands_below_it() {
    let mut plots = 0;
    for walk in Walk::all() {
        for (step, view) in walk.steps.iter().flat_map(|step| step.views.iter().map(move |view| (step, view))) {
            let Show::Picture { command, now, .. } = view else { continue };
            let words: Vec<&str> = command.split(' ').map(|word| word.trim_matches('"')).collect();
            let after =
                |flag: &'static str| words.windows(2).filter(move |pair| pair[0] == flag).map(move |pair| pair[1]);
            let at = format!("{} {}: {command}", walk.name, step.id);
            let folders: Vec<&str> = walk.models.iter().map(Made::folder).collect();
            assert!(after("--model").all(|folder| folders.contains(&folder)), "{at}");
            let pictures = after("--plot").count() + after("--diagram").count();
            assert_eq!(after("--plot-out").count(), pictures, "{at}");
            // a diagram has the document's words; layers and sketch have llm.c's by themselves
            let own = after("--notation").next() == Some(walk.notation.name()) || walk.notation == Notation::Llmc;
            assert!(after("--diagram").count() == 0 || own, "{at}");
            if let Some(now) = now
                && let Show::Heat { of, part, at: of_run } = now.as_ref()
            {
                let places = [part.sequence, part.head].into_iter().flatten().map(|n| n.to_string());
                let part = places.collect::<Vec<_>>().join(",");
                let (name, place) = after("--plot").next().unwrap().split_once('[').unwrap_or((of, "0]"));
                assert_eq!((name, place), (of.as_str(), format!("{part}]").as_str()), "{at}");
                assert_eq!(words.contains(&"--initial"), of_run.initial, "{at}");
                plots += 1;
            }
        }
    }
    assert_eq!(plots, 3);
}
