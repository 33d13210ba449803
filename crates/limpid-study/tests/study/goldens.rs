//! What can be held against something written down: the tables the seed documents print (`src/walk/printed.json` has
//! the numbers, docs/contract.md the letters R and G), the listing of a tiny model, a model directory and every way it
//! can be broken, and one measured claim about depth.
//!
//! Printed numbers are compared within the tolerance the contract gives: S1 computed in f32 and printed six decimals
//! (four for attention), so some last digits are not those of the exact value.

use crate::common::folder::Folder;
use crate::common::ids;
use limpid::backend::{Backend, Cpu, Reference};
use limpid::checkpoint::{Checkpoint, CheckpointError, save_parameters};
use limpid::config::{Config, ConfigError, NormPlace, Positions};
use limpid::model::init::{self, Init};
use limpid::model::tables::sinusoidal;
use limpid::model::{Mode, Model, Param};
use limpid::names;
use limpid::ops::Batch;
use limpid::tokenizer::{Order, Tokenizer, TokenizerKind};
use limpid::trace::{Keep, Trace};
use limpid_study::walk::printed::{numbers, place, rows};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::fs;
use std::path::Path;

// ---- the printed tables

/// The 20 columns of 64 that S1 prints.
fn columns() -> Vec<usize> {
    numbers("s1.columns").into_iter().map(|column| column as usize).collect()
}

/// Every printed cell of a (16,64) table; returns how many there are and the worst error.
#[track_caller]
fn agrees(what: &str, got: impl Fn(usize, usize) -> f64, want: &[Vec<f64>], tolerance: f64) -> (usize, f64) {
    let (mut cells, mut worst) = (0, 0f64);
    for (t, row) in want.iter().enumerate() {
        assert_eq!(row.len(), 20, "{what}, row {t}");
        for (c, want) in columns().into_iter().zip(row) {
            let off = (got(t, c) - want).abs();
            assert!(off <= tolerance, "{what}[{t}][{c}]: {}, printed {want}, off by {off:.1e}", got(t, c));
            (cells, worst) = (cells + 1, worst.max(off));
        }
    }
    (cells, worst)
}

/// S1's model with one block, both backends, its token table set so that token t is the printed row t (columns that
/// were not printed are 0). E1-05: the rows are not those of the printed ids, so ids 0 to 15 stand for them.
fn zero_to_hero(look: impl Fn(&Trace)) {
    let config = Config { n_layer: 1, ..Config::preset("zero-to-hero").unwrap() };
    assert_eq!((config.d_model, config.context_length, config.positions), (64, 16, Positions::Sinusoidal));
    let model = Model::new(&config, Mode::Inspect { batch: 1, context: 16 }).unwrap();
    let mut table = vec![0.0; config.vocab_size * 64];
    for (t, row) in rows("s1.embedding").iter().enumerate() {
        columns().into_iter().zip(row).for_each(|(c, v)| table[t * 64 + c] = *v as f32);
    }
    let backends: [Box<dyn Backend>; 2] = [Box::new(Reference::new(&model)), Box::new(Cpu::new(&model, 2))];
    for mut backend in backends {
        backend.write(model.param("embed.weight").unwrap().region, &table).unwrap();
        let batch = Batch::of_sequences((0..16).collect(), vec![], 16);
        look(&Trace::run(&model, backend, &batch, Keep::All).unwrap());
    }
}

#[test]
fn the_printed_numbers_say_where_they_are_from() {
    let text = include_str!("../../src/walk/printed.json");
    assert!(
        text.trim_start_matches(['{', '\n', ' '])
            .starts_with("\"source\": \"Numbers that the five documents print, copied from them")
    );
    assert_eq!(columns(), (0..10).chain(54..64).collect::<Vec<_>>());
}

/// G07, R060, R072: all 16 rows of S1's table, 320 cells, as the function and as a tensor of a run.
#[test]
fn the_printed_position_table() {
    let want = rows("s1.positions");
    let (cells, worst) = agrees("sinusoidal", |t, c| sinusoidal(t, c, 64), &want, 1e-6);
    assert_eq!(cells, 320);
    assert!(worst > 5e-7, "the printed table rounds f32 values: the last digit of some is one off, here {worst:.1e}");
    zero_to_hero(|trace| {
        let pe = trace.get("hook_pos_embed").unwrap();
        assert_eq!(pe.shape, [1, 16, 64]);
        agrees("hook_pos_embed", |t, c| f64::from(pe.at(&[0, t, c]).unwrap()), &want, 1e-6);
    });
}

/// G09, R073, R302: S1's embedding of batch 0, plus positions, is its "Final Input Embedding", 320 cells.
#[test]
fn embedding_plus_positions_is_the_printed_sum() {
    let (x, sum) = (rows("s1.embedding"), rows("s1.sums.batch0"));
    assert_eq!((x.len(), sum.len()), (16, 16));
    zero_to_hero(|trace| {
        let of = |name| trace.get(name).unwrap();
        let (got_x, got) = (of("hook_embed"), of("hook_embed_sum"));
        agrees("hook_embed", |t, c| f64::from(got_x.at(&[0, t, c]).unwrap()), &x, 2e-7); // rounded to f32
        let (cells, _) = agrees("hook_embed_sum", |t, c| f64::from(got.at(&[0, t, c]).unwrap()), &sum, 1.5e-6);
        assert_eq!(cells, 320);
        assert_eq!(of("blocks.0.hook_resid_pre").values, got.values); // post-norm: the block reads the sum itself
    });
}

/// G13, R125, R304, R307, E1-17: S1's printed scores are what its printed weights are the softmax of, so they were
/// scaled already. Through a real attention: token t is the unit vector e_t, keys are the tokens themselves, and the
/// query matrix is such that query t times key j, over the root of the head size, is the printed score.
#[test]
fn the_printed_weights_are_the_softmax_of_the_printed_scores() {
    let (scores, weights) = (rows("s1.attention.scores"), rows("s1.attention.weights"));
    let (t, c) = (3, 4); // of rows 0 to 2 all is printed; sqrt(4) is exact
    let config = Config {
        vocab_size: t,
        context_length: t,
        d_model: c,
        n_head: 1,
        n_layer: 1,
        d_ff: 4,
        norm_place: NormPlace::Post,
        final_norm: false,
        attention_bias: false,
        ..Config::default()
    };
    let model = Model::new(&config, Mode::Inspect { batch: 1, context: t }).unwrap();
    let unit = |rows: usize| (0..rows * c).map(|i| f32::from(i / c == i % c)).collect::<Vec<f32>>();
    let near = |mut backend: Box<dyn Backend>, by: f64| {
        let mut qkv = vec![0.0; 3 * c * c]; // (out,in): column t of the first third is query t
        for (i, row) in scores[..t].iter().enumerate() {
            row[..t].iter().enumerate().for_each(|(j, s)| qkv[j * c + i] = (2.0 * by * s) as f32);
        }
        qkv[c * c..2 * c * c].copy_from_slice(&unit(c));
        backend.write(model.param("embed.weight").unwrap().region, &unit(t)).unwrap();
        backend.write(model.param("blocks.0.attn.qkv.weight").unwrap().region, &qkv).unwrap();
        let batch = Batch::of_sequences((0..t as u32).collect(), vec![], t);
        let trace = Trace::run(&model, backend, &batch, Keep::All).unwrap();
        let of = |name: &str| trace.get(&format!("blocks.0.attn.{name}")).unwrap();
        let (masked, pattern) = (of("hook_attn_scores"), of("hook_pattern"));
        let mut near = true;
        for i in 0..t {
            for j in 0..t {
                let (s, w) = (masked.at(&[0, 0, i, j]).unwrap(), f64::from(pattern.at(&[0, 0, i, j]).unwrap()));
                near &= (w - weights[i][j]).abs() <= 6e-5;
                assert!(j <= i || (s, w) == (f32::NEG_INFINITY, 0.0));
                assert!(j > i || (f64::from(s) - by * scores[i][j]).abs() < 1e-6, "score {i} {j}: {s}");
            }
        }
        near
    };
    assert!(near(Box::new(Reference::new(&model)), 1.0) && near(Box::new(Cpu::new(&model, 1)), 1.0));
    assert!(!near(Box::new(Reference::new(&model)), 0.25), "divided by 4 once more they are other weights");

    // rows 13 to 15 are printed in part: any two weights of a row are in the ratio exp(difference of their scores)
    let [at, columns] = place("s1.attention.scores");
    for (i, row) in at.iter().enumerate().skip(t) {
        let seen = columns.iter().filter(|column| *column <= row).count();
        let (s, p) = (&scores[i][..seen], &weights[i][..seen]);
        let fits = |by: f64| {
            let pairs = (0..s.len()).flat_map(|i| (0..s.len()).map(move |j| (i, j)));
            let ratio = |i: usize, j: usize| (by * (s[i] - s[j])).exp();
            // both printed to four decimals, and the scores too
            pairs.clone().all(|(i, j)| (p[i] - p[j] * ratio(i, j)).abs() <= 6e-5 * (1.0 + ratio(i, j)) + 1e-4 * p[i])
        };
        assert!(fits(1.0) && !fits(0.25), "row {row}");
    }
}

/// G15, R143: S3's reduced example, T = 4, C = 2, one head of size 2.
#[test]
fn shapes_of_the_reduced_example() {
    let preset = Config::preset("decoder-readme").unwrap();
    let config = Config { d_model: 2, n_head: 1, d_ff: 8, ..preset };
    assert_eq!((config.d_head(), config.context_length), (2, 4));
    let model = Model::new(&config, Mode::Inspect { batch: 1, context: 4 }).unwrap();
    let reference = Reference::new(&model);
    let trace =
        Trace::run(&model, Box::new(reference), &Batch::of_sequences(vec![1, 2, 3, 0], vec![], 4), Keep::All).unwrap();
    for (name, shape) in [
        ("hook_resid_pre", &[1, 4, 2][..]), // X
        ("attn.hook_q", &[1, 4, 1, 2]),
        ("attn.hook_k", &[1, 4, 1, 2]),
        ("attn.hook_v", &[1, 4, 1, 2]),
        ("attn.hook_raw_scores", &[1, 1, 4, 4]), // Q K'
        ("attn.hook_pattern", &[1, 1, 4, 4]),
        ("attn.hook_z", &[1, 4, 1, 2]), // the head's output
        ("hook_attn_out", &[1, 4, 2]),
    ] {
        assert_eq!(trace.get(&format!("blocks.0.{name}")).unwrap().shape, shape, "{name}");
    }
    // W_Q, W_K, W_V are (2,2) each, side by side
    assert_eq!(trace.get("blocks.0.attn.qkv.weight").unwrap().shape, [3 * 2, 2]);
    assert_eq!(trace.get("logits").unwrap().shape, [1, 4, 7]);
}

/// R345: what the documents say a query, a key and a value are is what limpid says of them.
#[test]
fn queries_keys_and_values_are_described() {
    for (letter, words) in [
        ("q", ["queries", "the token being processed"]),
        ("k", ["keys", "the label of a token for the others"]),
        ("v", ["values", "the information each token passes on"]),
    ] {
        let about = names::describe(&format!("blocks.3.attn.hook_{letter}")).unwrap();
        assert!(words.iter().all(|w| about.contains(w)), "{about}");
    }
}

// ---- the listing

/// R315: op by op, what each makes and how large (rows, columns), and from what. `space@place` is what has no name: a
/// norm's statistics, a row's log-sum-exp. Read against `model/builder.rs` line by line.
#[test]
fn the_listing_of_a_tiny_model() {
    let tiny =
        Config { vocab_size: 11, context_length: 6, d_model: 8, n_head: 2, n_layer: 1, d_ff: 12, ..Config::default() };
    let listing = |config: &Config, mode| Model::new(config, mode).unwrap().to_string();
    // pre-norm, learned positions, all biases, tied head
    let want = "\
embed     blocks.0.hook_resid_pre            (5, 8)  <- embed.weight pos_embed.weight
norm      blocks.0.ln1.hook_out              (5, 8)  <- blocks.0.hook_resid_pre stat@0 blocks.0.ln1.weight \
                blocks.0.ln1.bias
linear    blocks.0.attn.hook_qkv             (5, 24)  <- blocks.0.ln1.hook_out blocks.0.attn.qkv.weight \
                blocks.0.attn.qkv.bias
attend    blocks.0.attn.hook_z               (5, 8)  <- blocks.0.attn.hook_qkv stat@64
linear    blocks.0.hook_attn_out             (5, 8)  <- blocks.0.attn.hook_z blocks.0.attn.out.weight \
                blocks.0.attn.out.bias
add       blocks.0.hook_resid_mid            (5, 8)  <- blocks.0.hook_resid_pre blocks.0.hook_attn_out
norm      blocks.0.ln2.hook_out              (5, 8)  <- blocks.0.hook_resid_mid stat@128 blocks.0.ln2.weight \
                blocks.0.ln2.bias
linear    blocks.0.mlp.hook_pre              (5, 12)  <- blocks.0.ln2.hook_out blocks.0.mlp.in.weight \
                blocks.0.mlp.in.bias
activate  blocks.0.mlp.hook_post             (5, 12)  <- blocks.0.mlp.hook_pre
linear    blocks.0.hook_mlp_out              (5, 8)  <- blocks.0.mlp.hook_post blocks.0.mlp.out.weight \
                blocks.0.mlp.out.bias
add       blocks.0.hook_resid_post           (5, 8)  <- blocks.0.hook_resid_mid blocks.0.hook_mlp_out
norm      ln_final.hook_out                  (5, 8)  <- blocks.0.hook_resid_post stat@192 ln_final.weight ln_final.bias
classify  losses                             (5, 1)  <- ln_final.hook_out embed.weight
";
    assert_eq!(listing(&tiny, Mode::Score { batch: 1, context: 5 }), want);

    // post-norm with gains only, rotary, no biases in attention, own head with bias; everything watched
    let post = Config {
        norm_place: NormPlace::Post,
        final_norm: false,
        norm_offset: false,
        positions: Positions::Rotary,
        attention_bias: false,
        tied_head: false,
        head_bias: true,
        ..tiny
    };
    let want = "\
embed     blocks.0.hook_resid_pre            (5, 8)  <- embed.weight hook_embed
linear    blocks.0.attn.hook_qkv             (5, 24)  <- blocks.0.hook_resid_pre blocks.0.attn.qkv.weight
rotate    blocks.0.attn.hook_rotated         (5, 24)  <- blocks.0.attn.hook_qkv angles
attend    blocks.0.attn.hook_z               (5, 8)  <- blocks.0.attn.hook_rotated stat@256 \
                blocks.0.attn.hook_raw_scores blocks.0.attn.hook_attn_scores blocks.0.attn.hook_pattern
linear    blocks.0.hook_attn_out             (5, 8)  <- blocks.0.attn.hook_z blocks.0.attn.out.weight
add       blocks.0.hook_attn_sum             (5, 8)  <- blocks.0.hook_resid_pre blocks.0.hook_attn_out
norm      blocks.0.hook_resid_mid            (5, 8)  <- blocks.0.hook_attn_sum stat@448 blocks.0.ln1.weight \
                blocks.0.ln1.hook_normalized blocks.0.ln1.hook_scale
linear    blocks.0.mlp.hook_pre              (5, 12)  <- blocks.0.hook_resid_mid blocks.0.mlp.in.weight \
                blocks.0.mlp.in.bias
activate  blocks.0.mlp.hook_post             (5, 12)  <- blocks.0.mlp.hook_pre
linear    blocks.0.hook_mlp_out              (5, 8)  <- blocks.0.mlp.hook_post blocks.0.mlp.out.weight \
                blocks.0.mlp.out.bias
add       blocks.0.hook_mlp_sum              (5, 8)  <- blocks.0.hook_resid_mid blocks.0.hook_mlp_out
norm      blocks.0.hook_resid_post           (5, 8)  <- blocks.0.hook_mlp_sum stat@640 blocks.0.ln2.weight \
                blocks.0.ln2.hook_normalized blocks.0.ln2.hook_scale
classify  losses                             (5, 1)  <- blocks.0.hook_resid_post unembed.weight unembed.bias logits \
                probs
";
    assert_eq!(listing(&post, Mode::Inspect { batch: 1, context: 5 }), want);
}

// ---- a model directory

const TEXT: &str = "cat eat mouse\ndog chase cat\nmouse eat cheese";

fn initial(model: &Model, param: &Param) -> Vec<f32> {
    init::values(model, param, Init::Normal, 0.5, 5)
}

/// A directory as a run leaves it, and what is in it.
fn directory(name: &str) -> (Folder, Config, Tokenizer) {
    let (folder, tokenizer) =
        (Folder::new(name), Tokenizer::train(TokenizerKind::Word, TEXT, Order::FirstAppearance, &[]).unwrap());
    let config = Config {
        vocab_size: tokenizer.vocab_size(),
        context_length: 4,
        d_model: 6,
        n_head: 3,
        n_layer: 2,
        d_ff: 10,
        norm_place: NormPlace::Post,
        ..Config::default()
    };
    let model = Model::new(&config, Mode::Train { batch: 2, context: 3 }).unwrap();
    let mut cpu = Cpu::new(&model, 1);
    model.params.iter().for_each(|p| cpu.write(p.region, &initial(&model, p)).unwrap());
    fs::write(folder.0.join("config.json"), config.to_json()).unwrap();
    tokenizer.save(folder.0.join("tokenizer.json")).unwrap();
    save_parameters(&folder.0.join("model.safetensors"), &model, &cpu).unwrap();
    (folder, config, tokenizer)
}

/// R234: what was stored is what is opened, to the bit, for every use; storing it again gives the same bytes.
#[test]
fn a_model_directory_comes_back() {
    let (folder, config, tokenizer) = directory("round-trip");
    let opened = Checkpoint::open(&folder.0).unwrap();
    assert_eq!((&opened.config, &opened.path), (&config, &folder.0));
    let read = opened.tokenizer.as_ref().unwrap();
    assert_eq!(read.to_json(), tokenizer.to_json());
    let ids = read.encode(TEXT).unwrap();
    assert_eq!(read.decode(&ids).unwrap(), tokenizer.decode(&tokenizer.encode(TEXT).unwrap()).unwrap());
    for mode in [
        Mode::Train { batch: 1, context: 4 },
        Mode::Inspect { batch: 2, context: 2 },
        Mode::Decode { rows: 3, outputs: 1, blocks: 1 },
    ] {
        let model = Model::new(&opened.config, mode).unwrap();
        let (mut cpu, mut reference) = (Cpu::new(&model, 2), Reference::new(&model));
        opened.load(&model, &mut cpu).unwrap();
        opened.load(&model, &mut reference).unwrap();
        for param in &model.params {
            let want: Vec<u32> = initial(&model, param).iter().map(|v| v.to_bits()).collect();
            for got in [cpu.read(param.region).unwrap(), reference.read(param.region).unwrap()] {
                assert_eq!(got.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), want, "{} {mode:?}", param.name);
            }
        }
        let again = folder.0.join("again.safetensors");
        save_parameters(&again, &model, &cpu).unwrap();
        assert!(fs::read(&again).unwrap() == fs::read(folder.0.join("model.safetensors")).unwrap(), "{mode:?}");
    }
    assert_eq!(
        opened.store().names().count(),
        Model::new(&config, Mode::Decode { rows: 1, outputs: 1, blocks: 1 }).unwrap().params.len()
    );
    // a tokenizer is no must: a model of bare ids has none
    fs::remove_file(folder.0.join("tokenizer.json")).unwrap();
    assert!(Checkpoint::open(&folder.0).unwrap().tokenizer.is_none());
}

type Stored = Vec<(String, Dtype, Vec<usize>, Vec<u8>)>;

/// Rewrites a safetensors file with its tensors changed.
fn change(path: &Path, edit: impl Fn(&mut Stored)) {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Stored =
        file.iter().map(|(name, t)| (name.to_string(), t.dtype(), t.shape().to_vec(), t.data().to_vec())).collect();
    edit(&mut all);
    let views =
        all.iter().map(|(name, dtype, shape, data)| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Opens a broken directory and loads it; the error, after a look that not one value was changed.
#[track_caller]
fn refused(folder: &Folder, config: &Config) -> CheckpointError {
    let opened = match Checkpoint::open(&folder.0) {
        Ok(opened) => opened,
        Err(error) => return error,
    };
    let model = Model::new(config, Mode::Train { batch: 1, context: 4 }).unwrap();
    let mut cpu = Cpu::new(&model, 1);
    let before: Vec<Vec<f32>> = model.params.iter().map(|p| vec![9.0; p.region.len()]).collect();
    model.params.iter().zip(&before).for_each(|(p, values)| cpu.write(p.region, values).unwrap());
    let error = opened.load(&model, &mut cpu).expect_err("a broken directory was loaded");
    assert!(
        model.params.iter().zip(&before).all(|(p, values)| cpu.read(p.region).unwrap() == *values),
        "half loaded: {error}"
    );
    error
}

/// R234: what cannot be used is refused, typed, with file and tensor named, and the model is left as it was.
#[test]
fn a_broken_directory_is_refused_with_the_reason() {
    use CheckpointError as E;
    let weights = "model.safetensors";
    let broken = |name: &str, break_it: &dyn Fn(&Folder)| {
        let (folder, config, _) = directory(name);
        break_it(&folder);
        let error = refused(&folder, &config);
        (error, folder.0.clone())
    };
    let tensors = |name: &str, edit: &dyn Fn(&mut Stored)| broken(name, &|f| change(&f.0.join(weights), edit));
    let at = |all: &Stored, name: &str| all.iter().position(|t| t.0 == name).unwrap();
    let last = "blocks.1.mlp.out.weight"; // near the end: everything before it is sound

    let (error, dir) = tensors("missing", &|all| {
        let i = at(all, last);
        all.remove(i);
    });
    assert!(matches!(&error, E::Missing { path, tensor } if *path == dir.join(weights) && tensor == last), "{error}");

    let (error, _) = tensors("shape", &|all| {
        let i = at(all, last);
        all[i].2.reverse(); // the other way round: as many bytes
    });
    let E::Shape { tensor, found, wanted, .. } = &error else { panic!("{error}") };
    assert_eq!((tensor.as_str(), &found[..], &wanted[..]), (last, &[10, 6][..], &[6, 10][..]));

    let (error, _) = tensors("dtype", &|all| {
        let i = at(all, last);
        all[i].1 = Dtype::I32;
    });
    assert!(matches!(&error, E::Format { what, .. } if what.contains(last) && what.contains("I32")), "{error}");

    let (error, _) = tensors("extra", &|all| {
        all.push(("blocks.2.mlp.in.bias".into(), Dtype::F32, vec![1], vec![0; 4]));
    });
    assert!(matches!(&error, E::Format { what, .. } if what.contains("`blocks.2.mlp.in.bias`")), "{error}");

    // cut within the data, within the header, within the header's length, to nothing; and longer than it says
    for (i, cut) in [-4, 100, 5, 0, 3].into_iter().enumerate() {
        let (error, dir) = broken(&format!("cut-{i}"), &|folder| {
            let mut bytes = fs::read(folder.0.join(weights)).unwrap();
            let len = if i == 0 || i == 4 { bytes.len().saturating_add_signed(cut) } else { cut as usize };
            bytes.resize(len, 0);
            fs::write(folder.0.join(weights), bytes).unwrap();
        });
        let E::Format { path, what } = &error else { panic!("{cut}: {error}") };
        assert_eq!(*path, dir.join(weights));
        assert!(what.contains("cut short") || what.contains("not a safetensors file"), "{cut}: {error}");
    }

    let (error, _) = broken("tokenizer", &|folder| {
        let other = Tokenizer::train(TokenizerKind::Char, TEXT, Order::Sorted, &[]).unwrap();
        other.save(folder.0.join("tokenizer.json")).unwrap();
    });
    assert!(matches!(error, E::Mismatch { tokens, vocab_size, .. } if tokens > vocab_size), "{error}");
    let (error, _) = broken("no-tokenizer", &|folder| fs::write(folder.0.join("tokenizer.json"), "{").unwrap());
    assert!(matches!(error, E::Tokenizer(_)), "{error}");

    for missing in ["config.json", weights] {
        let (error, dir) = broken(missing, &|folder| fs::remove_file(folder.0.join(missing)).unwrap());
        assert!(matches!(&error, E::NotAModel { path, missing: m } if *path == dir && *m == missing), "{error}");
    }
    let (error, _) = broken("gone", &|folder| fs::remove_dir_all(&folder.0).unwrap());
    assert!(matches!(&error, E::Io { fault, .. } if fault.kind() == std::io::ErrorKind::NotFound), "{error}");
    let (error, _) = broken("config", &|folder| {
        let (path, text) = (folder.0.join("config.json"), fs::read_to_string(folder.0.join("config.json")).unwrap());
        fs::write(path, text.replace("\"n_head\": 3", "\"n_head\": 4")).unwrap();
    });
    assert!(matches!(&error, E::Config { source: ConfigError::HeadsDontDivide { n_head: 4, .. }, .. }), "{error}");
}

// ---- depth

/// Norms of the loss's gradient before any step, first block to last: in what leaves each block, and in each block's
/// parameters.
fn gradients_by_block(place: NormPlace, (scheme, std): (Init, f64), layers: usize, seed: u64) -> [Vec<f64>; 2] {
    let (b, t) = (2, 16);
    let config = Config {
        vocab_size: 64,
        context_length: t,
        d_model: 64,
        n_head: 4,
        n_layer: layers,
        d_ff: 256,
        norm_place: place,
        final_norm: place == NormPlace::Pre,
        tied_head: false,
        ..Config::default()
    };
    let model = Model::new(&config, Mode::Inspect { batch: b, context: t }).unwrap();
    let mut cpu = Cpu::new(&model, 2);
    model.params.iter().for_each(|p| cpu.write(p.region, &init::values(&model, p, scheme, std, seed)).unwrap());
    let random = |what: &str| ids(&format!("{what} {seed}"), b * t, config.vocab_size);
    let batch = Batch::of_sequences(random("tokens"), random("targets"), t);
    let trace = Trace::run(&model, Box::new(cpu), &batch, Keep::Gradients).unwrap();
    let square = |name: &str| -> f64 {
        trace.get(&format!("{name}.grad")).unwrap().values.iter().map(|g| f64::from(*g).powi(2)).sum()
    };
    let own = |i: usize| {
        let prefix = format!("blocks.{i}.");
        model.params.iter().filter(|p| p.name.starts_with(&prefix)).map(|p| square(&p.name)).sum::<f64>().sqrt()
    };
    let stream = |i: usize| square(&format!("blocks.{i}.hook_resid_post")).sqrt();
    [(0..layers).map(stream).collect(), (0..layers).map(own).collect()]
}

/// R170 to R173, R262: what of "pre-norm has better gradient flow" can be measured at initialisation, 16 blocks.
///
/// Holds: in a pre-norm stack the gradient in the residual stream loses nothing in any block on its way down, while
/// every post-norm stack has blocks where it shrinks. With one deviation for all weights (normal, xavier) the last
/// block's gradient becomes smaller with depth in pre-norm, as 1 / sqrt(L), and does not in post-norm: one reason why
/// post-norm needs a warm-up (Xiong et al. 2020). Measured over seeds 0 to 7, least and greatest:
///
/// | scheme       | smallest step, pre, post | first / last, pre, post | last block, 16 / 4 blocks, pre, post |
/// |--------------|--------------------------|-------------------------|--------------------------------------|
/// | normal 0.02  | 1.01-1.03, 0.98-0.99     | 2.8-3.4, 0.98-0.99      | 0.49-0.54, 0.99-1.01                 |
/// | normal 0.069 | 1.02-1.03, 0.94-0.98     | 3.3-4.0, 0.89-1.25      | 0.44-0.58, 1.01-1.12                 |
/// | xavier, N(0,1) tables | 1.01-1.02, 0.79-0.86 | 1.9-2.1, 0.45-1.36 | 0.67-0.76, 1.08-1.55                 |
/// | he, N(0,1) tables     | 1.02-1.04, 0.59-0.72 | 4.5-6.4, 0.56-4.03 | 0.47-0.71, 0.61-1.41                 |
///
/// Does not hold: that first over last is nearer 1 in pre-norm. With small weights a post-norm stack is nearly flat
/// (0.98); with large ones chance decides how much arrives (he: 0.56 to 4.03). GPT-2's own scheme divides what is added
/// by sqrt(2 L), and its last block's gradient hardly depends on depth in either (0.91-1.02, 0.98-0.99; tied head).
#[test]
#[ignore = "gate"]
fn pre_norm_hands_gradients_down_a_deep_stack() {
    for scheme in [(Init::Normal, 0.02), (Init::Xavier, 1.0), (Init::He, 1.0)] {
        for seed in 0..4 {
            let run = |place, layers| gradients_by_block(place, scheme, layers, seed);
            let smallest = |stream: &[f64]| stream.windows(2).map(|w| w[0] / w[1]).fold(f64::INFINITY, f64::min);
            let [[pre, pre_own], [post, post_own]] = [NormPlace::Pre, NormPlace::Post].map(|place| run(place, 16));
            let what = format!("{} seed {seed}", scheme.0);
            assert!(smallest(&pre) > 1.0 && smallest(&post) < 0.995, "{what}: {} {}", smallest(&pre), smallest(&post));
            if scheme.0 != Init::He {
                let [pre, post] = [(NormPlace::Pre, pre_own), (NormPlace::Post, post_own)]
                    .map(|(place, own)| own[15] / run(place, 4)[1][3]);
                assert!(pre < 0.85 && post > 0.95, "{what}: last block, 16 blocks against 4: {pre} {post}");
            }
        }
    }
}
