//! Looking closer from the command line: what `inspect`, `tokenize` and `eval` show besides the usual.

use crate::common::{LIMPID, last_holds, text, words};
use limpid::draw::palette::{Palette, entry};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

const RHYME: &str = "Twinkle, twinkle, little star, how I wonder what you are. Up above the world so high, like a \
                     diamond in the sky.\n";

/// A folder with a model `m`, one `new` whose only step moved nothing, and `bare`: `m` without its limpid.toml.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("look");
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("bare")).unwrap();
        fs::write(path.join("rhyme.txt"), RHYME.repeat(12)).unwrap();
        let size = "--d-model 16 --n-head 2 --d-ff 64 --positions learned --n-layer 2 --context-length 16 \
                    --batch-size 4 --seed 5 --threads 1";
        for rest in ["--out m --steps 60 --learning-rate 0.01", "--out new --steps 1 --learning-rate 1e-9"] {
            let arguments = format!("train --data rhyme.txt --tokenizer char {size} --sample 0 --json {rest}");
            let out = run_in(&path, &arguments);
            assert!(out.status.success(), "{}", text(&out.stderr));
        }
        for file in ["config.json", "model.safetensors", "tokenizer.json"] {
            fs::copy(path.join("m").join(file), path.join("bare").join(file)).unwrap();
        }
        path
    })
}

fn run_in(folder: &Path, arguments: &str) -> Output {
    let mut command = Command::new(LIMPID);
    command
        .args(last_holds(words(arguments)))
        .current_dir(folder)
        .env("COLUMNS", "100")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[track_caller]
fn ok(arguments: &str) -> String {
    let out = run_in(folder(), arguments);
    assert!(out.status.success(), "limpid {arguments}: {}\n{}", out.status, text(&out.stderr));
    text(&out.stdout)
}

#[track_caller]
fn object(arguments: &str) -> Value {
    serde_json::from_str(&ok(&format!("{arguments} --json"))).unwrap()
}

/// Runs what must fail with `code`, a message that has `said`, and nothing on stdout.
#[track_caller]
fn fails(code: i32, arguments: &str, said: &str) {
    let out = run_in(folder(), arguments);
    let message = text(&out.stderr);
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(code), String::new()), "limpid {arguments}\n{message}");
    assert!(message.contains(said) && !message.contains("panicked"), "limpid {arguments}: no `{said}` in\n{message}");
    assert!(code == 2 || message.trim_end().lines().count() == 1, "limpid {arguments}: more than a line:\n{message}");
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// The values of one tensor of model `m` at `star`.
#[track_caller]
fn tensor(arguments: &str) -> Vec<f64> {
    numbers(&object(&format!("inspect --model m --prompt star {arguments}"))["tensors"][0]["values"])
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|v| v * v).sum::<f64>().sqrt()
}

#[track_caller]
fn near(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-5 * a.abs().max(1.0), "{a} {b}");
}

/// R316, R317.
/// What is asked for beside something else is done too, or refused: never left out in silence.
#[test]
fn no_flag_is_dropped() {
    let plot = "inspect --model m --prompt star --plot loss --plot-out";
    assert_eq!(object(&format!("{plot} beside.svg"))["plots"].as_array().unwrap().len(), 1);
    ok(&format!("{plot} alone.svg"));
    let written = |name: &str| fs::read(folder().join(name)).unwrap();
    assert!(written("beside.svg") == written("alone.svg"));
    for flags in ["--table", "--save x.npz", "--tensor logits", "--json", "--plot loss", "--diagram block"] {
        fails(
            2,
            &format!("inspect --model m --prompt star --html page.html {flags}"),
            "leave out the flags that print",
        );
    }
    assert!(!folder().join("page.html").exists() && !folder().join("x.npz").exists());
    for flags in ["--next", "--params", "--listing", "--prompt star"] {
        fails(2, &format!("inspect --plot gelu {flags}"), "no model is given");
    }
}

#[test]
fn parameters_join_the_table() {
    let row = |arguments: &str| {
        let rows = object(&format!("inspect --model m --prompt star {arguments}"))["rows"].clone();
        rows.as_array().unwrap().iter().find(|r| r["name"] == "blocks.1.mlp.in.weight").cloned()
    };
    assert_eq!(row(""), None);
    let row = row("--params").unwrap();
    assert_eq!((&row["shape"], &row["symbol"]), (&json!([64, 16]), &json!("W₁^FF⁽²⁾")));
    let values = tensor("--tensor blocks.1.mlp.in.weight");
    near(row["mean"].as_f64().unwrap(), values.iter().sum::<f64>() / values.len() as f64);
    near(row["max"].as_f64().unwrap(), values.iter().copied().fold(f64::MIN, f64::max));
    // in the printed table too, which --tensor alone would leave out
    assert!(ok("inspect --model m --prompt star --params --tensor logits").contains("blocks.1.mlp.in.weight"));
}

/// R335.
#[test]
fn tensors_by_the_words_of_a_document() {
    let row = |notation: &str, name: &str| {
        let rows = object(&format!("inspect --model m --prompt star --params --notation {notation}"))["rows"].clone();
        rows.as_array().unwrap().iter().find(|r| r["name"] == name).unwrap().clone()
    };
    let pattern = row("s3", "blocks.0.attn.hook_pattern");
    assert_eq!([&pattern["symbol"], &pattern["formula"]], ["softmax(wei)", "softmax(wei) = softmax(masked wei)"]);
    let q = row("S0", "blocks.1.attn.hook_q");
    assert_eq!((&q["symbol"], &q["axes"], &q["shape"]), (&json!("Q⁽²⁾"), &json!("B H T d_k"), &json!([1, 2, 4, 8])));
    assert_eq!(row("llmc", "blocks.1.mlp.in.weight")["symbol"], "fcw[1]");
    let shown = ok("inspect --model m --prompt star --tensor blocks.0.attn.hook_pattern --notation s3 --head 0");
    assert!(
        shown.starts_with("blocks.0.attn.hook_pattern [B heads T T]: softmax(wei) = softmax(masked wei)\n"),
        "{shown}"
    );
    let shown = ok("inspect --model m --prompt star --backward --notation llmc");
    let gradients = shown.split_once("gradient of ").unwrap().1;
    assert!(gradients.contains("  att[1]  ") && !gradients.contains("A_w"), "{gradients}");
    fails(2, "inspect --model m --prompt star --notation s9", "transformerlens");
}

/// R248: every choice with ids and logits, which are those that `inspect` shows.
#[test]
fn a_sample_with_every_choice() {
    let command = "generate --model m --prompt Twi --temperature 0.7 --max-tokens 5";
    let sample = object(&format!("{command} --trace"))["samples"][0].clone();
    let (ids, trace) = (sample["tokens"].as_array().unwrap(), sample["trace"].as_array().unwrap());
    assert_eq!((ids.len(), trace.len()), (5, 5));
    for (n, (id, step)) in ids.iter().zip(trace).enumerate() {
        let (chosen, best) = (&step["chosen"], step["candidates"].as_array().unwrap());
        assert_eq!((&step["input_len"], &chosen["id"], best.len()), (&json!(3 + n), id, 5));
        let of = |candidate: &Value, key: &str| candidate[key].as_f64().unwrap();
        let ratio = (of(&best[0], "logit") - of(&best[1], "logit")).exp();
        near(of(&best[0], "probability") / of(&best[1], "probability"), ratio);
        // a temperature below 1 is sharper
        assert!(of(&best[0], "chance") > of(&best[0], "probability"), "{step}");
    }
    let logits = numbers(&object("inspect --model m --prompt Twi --tensor logits")["tensors"][0]["values"]);
    let last = &logits[logits.len() / 3 * 2..];
    for candidate in trace[0]["candidates"].as_array().unwrap() {
        near(candidate["logit"].as_f64().unwrap(), last[candidate["id"].as_u64().unwrap() as usize]);
    }
    assert!(object(command)["samples"][0].get("trace").is_none(), "only where it is asked for");
    let told = text(&run_in(folder(), &format!("{command} --trace")).stderr);
    let first = &trace[0]["chosen"];
    let line = format!(
        "input (1, 3): {} (id {}, logit {:.3}, ",
        first["piece"],
        first["id"],
        first["logit"].as_f64().unwrap()
    );
    assert!(told.contains(&line), "no `{line}` in\n{told}");
}

/// R250, R251.
#[test]
fn gradients_are_a_table_and_a_norm_a_layer() {
    let found = object("inspect --model m --prompt star --backward --params");
    let gradients = found["gradients"].as_array().unwrap();
    let norm_of = |name: &str| gradients.iter().find(|g| g["name"] == name).unwrap()["norm"].as_f64().unwrap();
    near(norm_of("blocks.0.hook_resid_mid"), norm(&tensor("--tensor blocks.0.hook_resid_mid.grad")));
    near(norm_of("embed.weight"), norm(&tensor("--tensor embed.weight.grad")));
    assert!(!gradients.iter().any(|g| g["name"] == "input"), "token ids have no gradient");
    let layers = found["layers"].as_array().unwrap();
    let layer = |name: &str| layers.iter().find(|l| l["name"] == name).unwrap()["norm"].as_f64().unwrap();
    let own: Vec<f64> = ["ln1", "attn.qkv", "attn.out", "ln2", "mlp.in", "mlp.out"]
        .iter()
        .map(|part| norm_of(&format!("blocks.1.{part}.weight")))
        .collect();
    near(layer("blocks.1"), norm(&own));
    let parts: Vec<f64> = ["embed", "pos_embed", "blocks.0", "blocks.1", "ln_final"].map(layer).to_vec();
    near(layer("all"), norm(&parts));
    assert!(layer("blocks.1") > 0.0 && layers.len() == 6, "{layers:?}");

    let shown = ok("inspect --model m --prompt star --backward");
    let (_, table) = shown.split_once("gradient of ").expect("a table of gradients");
    assert!(table.contains("blocks.0.attn.hook_pattern") && table.contains("gradient of the parameters of"));
    assert!(!table.contains("embed.weight"), "parameters come with --params:\n{table}");
    assert!(!ok("inspect --model m --prompt star").contains("gradient"));
    // what was there before: a named tensor is printed alone
    assert!(!ok("inspect --model m --prompt star --backward --tensor logits.grad").contains("gradient of"));
}

/// R304, R307.
#[test]
fn one_head_with_four_decimals() {
    let all = tensor("--tensor blocks.0.attn.hook_pattern");
    let one = tensor("--tensor blocks.0.attn.hook_pattern --head 1");
    assert_eq!(one, all[16..]);
    let q = "--tensor blocks.0.attn.hook_q";
    let (all, one) = (tensor(q), tensor(&format!("{q} --head 1")));
    for t in 0..4 {
        assert_eq!(one[t * 8..][..8], all[t * 16 + 8..][..8]);
    }
    let shown = ok("inspect --model m --prompt star --tensor blocks.0.attn.hook_pattern --head 1 --decimals 4");
    assert!(shown.contains("hook_pattern, head 1") && shown.matches("rows x").count() == 1, "{shown}");
    assert!(shown.contains("  1.0000  0.0000") && !shown.contains("1.00000"), "{shown}");
    fails(1, "inspect --model m --prompt star --tensor blocks.0.attn.hook_z --head 2", "2 heads, 0 to 1");
    fails(1, "inspect --model m --prompt star --tensor logits --head 0", "no heads");
    fails(2, "inspect --model m --prompt star --head 0", "--tensor");
    fails(2, "inspect --model m --prompt star --tensor logits --decimals 40", "40");
}

/// R297, and tables without gaps.
#[test]
fn tables_whole_and_transposed() {
    let (rows, transposed) = (tensor("--tensor hook_embed"), tensor("--tensor hook_embed --transpose"));
    let (q, flipped) = (tensor("--tensor blocks.0.attn.hook_q"), tensor("--tensor blocks.0.attn.hook_q --transpose"));
    for (t, c) in (0..4).flat_map(|t| (0..16).map(move |c| (t, c))) {
        assert_eq!(transposed[c * 4 + t], rows[t * 16 + c]);
        // (pos, head, d_head) becomes (head, d_head, pos)
        assert_eq!(flipped[c * 4 + t], q[t * 16 + c]);
    }
    let found = object("inspect --model m --prompt star --tensor blocks.0.attn.hook_q --transpose");
    assert_eq!(found["tensors"][0]["axes"], json!(["batch", "head", "d_head", "pos"]));
    assert_eq!(found["tensors"][0]["shape"], json!([1, 2, 8, 4]));
    assert!(
        ok("inspect --model m --prompt star --tensor ln_final.weight --transpose").contains("[16 rows x 1 columns]")
    );
    let table = "inspect --model m --prompt star --tensor blocks.0.mlp.in.weight";
    assert!(ok(table).contains("..."));
    let full = ok(&format!("{table} --full"));
    assert!(!full.contains("...") && full.lines().count() == 64 + 3, "{full}");
    fails(2, "inspect --model m --prompt star --full", "--masks");
}

/// R316: a summary keeps symbols and formulas where it has no room for statistics; a pipe has room for all.
#[test]
fn a_summary_fits_the_lines_it_is_given() {
    let shown = |width: &str| ok(&format!("inspect --model m --prompt star --table --width {width}"));
    let header = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("tensor ")).unwrap_or_else(|| panic!("{text}"));
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for (width, columns) in [(40, "tensor symbol"), (80, "tensor symbol shape formula")] {
        let text = shown(&width.to_string());
        // the tildes of X̃ take no column
        assert!(text.lines().all(|line| line.chars().count() <= width + 3), "{text}");
        assert_eq!(header(&text), columns);
        assert!(text.contains("\nblocks.1\n  hook_resid_pre "), "{text}");
    }
    let mut piped = Command::new(LIMPID);
    let piped =
        piped.args(words("inspect --model m --prompt star --table")).current_dir(folder()).env_remove("COLUMNS");
    let piped = text(&piped.stdin(Stdio::null()).output().unwrap().stdout);
    assert_eq!(header(&piped), "tensor symbol axes shape mean deviation min max formula");
    assert!(piped.contains("\nblocks.1.ln1.hook_normalized "), "{piped}");
    fails(2, "inspect --model m --prompt star --width 0", "--width");
    fails(2, "inspect --model m --prompt star --width 80 --json", "--json");
}

/// R304, R307, R321: attention with its tokens, as numbers and as a map; neither needs colours.
#[test]
fn attention_with_tokens_at_rows_and_columns() {
    let pattern = "inspect --model m --prompt star --tensor blocks.0.attn.hook_pattern";
    let first = |text: &str, n: usize| text.lines().skip(1).take(n).map(String::from).collect::<Vec<_>>();
    // no terminal: a table
    let table = first(&ok(pattern), 5);
    assert_eq!(table[0].split_whitespace().collect::<Vec<_>>(), ["s", "t", "a", "r"]);
    assert!(table[1].starts_with("0 s  1.000000  0.000000") && table[4].starts_with("3 r "), "{table:?}");
    let plain = first(&ok(&format!("{pattern} --labels false")), 5);
    assert_eq!(plain[0].split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    assert!(plain[4].starts_with("3  "), "{plain:?}");

    let map = ok(&format!("{pattern} --view heat"));
    assert!(map.contains("· hidden by the mask") && !map.contains('\u{1b}'), "{map}");
    let lines = first(&map, 5);
    assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["s", "t", "a", "r"]);
    assert_eq!(lines[1], "s ███1.0 ·      ·      ·");
    // each cell has its weight in it
    let weights = tensor("--tensor blocks.0.attn.hook_pattern");
    for (t, line) in lines[1..].iter().enumerate() {
        let cells = line.split_whitespace().skip(1).map(|cell| cell.trim_start_matches(['█', '▓', '▒', '░']));
        let seen: Vec<f64> = cells.filter_map(|cell| cell.parse().ok()).collect();
        assert_eq!(seen.len(), t + 1, "{map}");
        assert!(seen.iter().zip(&weights[4 * t..]).all(|(seen, p)| (seen - p).abs() < 0.0051), "{map}\n{weights:?}");
    }
    for width in [30, 40] {
        let narrow = ok(&format!("{pattern} --view heat --width {width}"));
        assert!(narrow.lines().all(|line| line.chars().count() <= width), "{narrow}");
    }
    // one token looks at itself
    assert!(ok(&pattern.replace("star", "s")).contains("0 s  1"));
    assert!(ok(&format!("{} --view heat", pattern.replace("star", "s"))).contains("s ███1.0\n"));
    // a model without a tokenizer has numbers
    let bare =
        ok("inspect --preset nano --n-layer 1 --tokens 1,2 --tensor blocks.0.attn.hook_pattern --view heat --head 0");
    assert!(bare.contains("\n  0      1\n0 ███1.0 ·\n"), "{bare}");
    assert!(ok("inspect --model m --prompt star --tensor probs").lines().nth(2).unwrap().starts_with("0 s  "));
    fails(2, &format!("{pattern} --view picture"), "heat");
    fails(2, "inspect --model m --prompt star --view heat", "--tensor");
}

/// R303, R305, R306: a file's colours are those of the tensor's values, and pictures are written whole or not at all.
#[test]
fn a_picture_has_the_colours_of_its_values() {
    let out = |name: &str| folder().join(name);
    let pattern = "blocks.1.attn.hook_pattern";
    let command = format!("inspect --model m --prompt star --plot {pattern}[0,1]");
    assert_eq!(ok(&format!("{command} --plot-out p.svg")), "");
    let svg = fs::read_to_string(out("p.svg")).unwrap();
    let weights = tensor(&format!("--tensor {pattern}"));
    for (t, word) in ["s", "t", "a", "r"].into_iter().enumerate() {
        for (key, other) in ["s", "t", "a", "r"].into_iter().enumerate().take(t + 1) {
            let p = weights[16 + 4 * t + key];
            let [r, g, b] = Palette::Ink.colour(entry(p, (0.0, 1.0)));
            let cell = format!(
                "fill=\"#{r:02x}{g:02x}{b:02x}\"><title>query_pos {t} {word}, key_pos {key} {other}: {}<",
                p as f32
            );
            assert!(svg.contains(&cell), "{cell} in {svg}");
        }
    }
    // in the terminal the same matrix
    let shown = ok(&command);
    assert!(shown.starts_with("blocks.1.attn.hook_pattern [batch 0, head 1]") && shown.contains("███1.0"), "{shown}");
    // as data
    let plots = object(&command)["plots"].clone();
    assert_eq!(plots[0]["parts"][0]["kind"], "matrix");
    assert_eq!(numbers(&plots[0]["parts"][0]["values"]), weights[16..32]);
    // several, each to its file; the ending says how it is drawn
    ok("inspect --model m --prompt star --plot loss --plot cos(hook_embed) --palette cividis --diagram loss \
        --plot-out l.png --plot-out c.SVG --plot-out d.svg");
    assert!(fs::read(out("l.png")).unwrap().starts_with(b"\x89PNG"));
    let [r, g, b] = Palette::Cividis.colour(255);
    assert!(fs::read_to_string(out("c.SVG")).unwrap().contains(&format!("#{r:02x}{g:02x}{b:02x}")));
    ok("inspect --plot gelu --plot-out gelu.svg");
    ok("inspect --plot gelu --gelu-alpha 1.5 --gelu-beta 0.9 --plot-out gelu3.svg");
    assert!(fs::read_to_string(out("gelu3.svg")).unwrap().contains("by tanh, α 1.5, β 0.9, γ 0.044715"));
    ok("inspect --model m --prompt star --plot gelu --plot-out gelu2.svg");
    assert!(fs::read_to_string(out("gelu2.svg")).unwrap().contains("values before the activation"));
    let names = ok("inspect --diagram list");
    assert!(names.contains("products") && names.lines().count() == 11, "{names}");
    // a model that was never trained needs no run for its shapes
    let svg = ok("inspect --preset gpt2-xl --diagram block");
    assert!(svg.starts_with("<svg ") && svg.contains("(1, 25, 1,024, 1,024)"), "{svg}");
    // in a document's words, from shapes alone and beside a run; layers and sketch have llm.c's unless another's are
    // asked for
    for (asked, word) in [
        ("--preset zero-to-hero --diagram head --notation s1", ">softmax_output</text>"),
        ("--model m --prompt star --diagram attention --notation s3", ">MHA output</text>"),
        ("--preset gpt2 --diagram layers", ">attprojw</text>"),
        ("--preset gpt2 --diagram layers --notation s0", ">W^O</text>"),
    ] {
        assert!(ok(&format!("inspect {asked}")).contains(word), "{asked}: {word}");
    }

    let plot = "inspect --model m --prompt star --plot";
    fails(2, &format!("{plot} logits --plot-out p.jpg"), "give a name that ends in .svg or .png");
    fails(2, &format!("{plot} logits --plot loss --plot-out p.svg"), "2 pictures and 1 file");
    fails(2, "inspect --model m --diagram block --plot-out b.png", "ends in .svg");
    fails(2, &format!("{plot} logits --plot loss --plot-out a.svg --plot-out a.svg"), "given twice");
    fails(1, &format!("{plot} logits --plot-out none/p.svg"), "there is no folder none");
    fails(1, &format!("{plot} logitz --plot-out z.svg"), "did you mean `logits`?");
    fails(1, &format!("{plot} logits[0,9] --plot-out z.svg"), "the axis pos has 4 places, 0 to 3; `9` is outside");
    fails(2, "inspect --model m --diagram blok", "did you mean `block`?");
    fails(2, &format!("{plot} logits --palette pink"), "viridis");
    fs::create_dir_all(out("taken.svg")).unwrap();
    fails(1, &format!("{plot} logits --plot-out taken.svg"), "taken.svg");
    fails(1, "inspect --model m --prompt s --plot loss --plot-out z.svg", "give at least two tokens");
    assert!(!out("z.svg").exists());
}

/// `--tensor` takes patterns.
#[test]
fn a_pattern_is_all_that_it_matches() {
    let found = object("inspect --model m --prompt star --tensor blocks.*.attn.hook_pattern --head 1");
    let names: Vec<&str> = found["tensors"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["blocks.0.attn.hook_pattern", "blocks.1.attn.hook_pattern"]);
    let shown = ok("inspect --model m --prompt star --tensor *.hook_resid_post");
    assert!(shown.matches("[4 rows x 16 columns]").count() == 2, "{shown}");
    fails(
        1,
        "inspect --model m --prompt star --tensor blocks.*.hook_resid_pots",
        "did you mean `blocks.0.hook_resid_post`?",
    );
}

/// A preset with a known tokenizer takes a prompt.
#[test]
fn an_untrained_model_can_be_looked_at() {
    let out = run_in(
        folder(),
        "inspect --preset llmc-gpt2 --n-layer 1 --d-model 16 --n-head 2 --d-ff 16 --prompt 'Hello world'",
    );
    assert!(out.status.success() && text(&out.stderr).contains("llmc-gpt2 is untrained here"), "{}", text(&out.stderr));
    let shown = text(&out.stdout);
    assert!(shown.starts_with("2 tokens: loss ") && shown.contains("\n\"Hello\"  \" world\"\n"), "{shown}");
    let shown =
        ok("inspect --preset decoder-readme --prompt 'dog jumps around cat' --tensor blocks.0.attn.hook_pattern \
            --head 0");
    assert!(shown.contains("jumps") && shown.contains("around"), "{shown}");
    fails(1, "inspect --preset nano --prompt Hello", "learned from the text that it is trained on");
}

/// What other programs keep apart: a norm's mean, scores before the scale, each head's own matrix.
#[test]
fn what_is_fused_can_be_seen_apart() {
    let found = object("inspect --model m --prompt star --tensor blocks.0.attn.W_K --head 1");
    assert_eq!(found["tensors"][0]["axes"], json!(["d_model", "d_head"]));
    let (own, fused) = (numbers(&found["tensors"][0]["values"]), tensor("--tensor blocks.0.attn.qkv.weight"));
    for (c, e) in (0..16).flat_map(|c| (0..8).map(move |e| (c, e))) {
        assert_eq!(own[c * 8 + e], fused[(16 + 8 + e) * 16 + c]);
    }
    let (unscaled, scaled) =
        (tensor("--tensor blocks.0.attn.hook_unscaled_scores"), tensor("--tensor blocks.0.attn.hook_raw_scores"));
    unscaled.iter().zip(&scaled).for_each(|(u, s)| near(*u, s * 8f64.sqrt()));
    let (mean, x) = (tensor("--tensor blocks.0.ln1.hook_mean"), tensor("--tensor blocks.0.hook_resid_pre"));
    mean.iter().zip(x.chunks(16)).for_each(|(mean, x)| near(*mean, x.iter().sum::<f64>() / 16.0));
    let heads = "inspect --model m --prompt star --tensor blocks.0.attn.hook_q --heads-first";
    let found = object(heads);
    assert_eq!(found["tensors"][0]["axes"], json!(["batch", "head", "pos", "d_head"]));
    assert_eq!(found["tensors"][0]["shape"], json!([1, 2, 4, 8]));
    let row =
        found["rows"].as_array().unwrap().iter().find(|row| row["name"] == "blocks.1.attn.hook_z").unwrap().clone();
    assert_eq!((&row["axes"], &row["shape"]), (&json!("B H T D"), &json!([1, 2, 4, 8])));
    // what is printed of it is the same
    assert_eq!(ok(heads), ok(heads.trim_end_matches(" --heads-first")));
}

/// R325.
#[test]
fn the_mask_in_three_forms() {
    let shown = ok("inspect --model m --prompt Twi --masks");
    let flat: Vec<&str> = shown.split_whitespace().collect();
    let flat = flat.join(" ");
    for rows in ["0 1 0 0 1 1 1 0 2 1 1 1", "0 0 -inf -inf 1 0 0 -inf 2 0 0 0", "1 x_1,0 x_1,1 -inf"] {
        assert!(flat.contains(rows), "{rows} in\n{shown}");
    }
    let masks = object("inspect --model m --prompt Twi --masks")["masks"].clone();
    assert_eq!(masks["binary"], json!([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]));
    assert_eq!(masks["additive"][1], json!([0.0, 0.0, null]));
    fails(1, "inspect --preset nano --mask bidirectional --masks", "hides nothing");
}

/// R235: the run that moved nothing still has its initial weights.
#[test]
fn a_model_before_its_training() {
    let values = |model: &str, name: &str| {
        numbers(&object(&format!("inspect --model {model} --prompt star --tensor {name}"))["tensors"][0]["values"])
    };
    let far = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    for name in ["embed.weight", "blocks.1.mlp.out.weight", "blocks.0.attn.hook_pattern"] {
        let (new, initial, trained) = (values("new", name), values("m --initial", name), values("m", name));
        assert!(far(&new, &initial) < 1e-6, "{name}: {}", far(&new, &initial));
        assert!(far(&trained, &initial) > 0.01, "{name}: {}", far(&trained, &initial));
    }
    fails(1, "inspect --model bare --prompt star --initial", "no limpid.toml");
    fails(2, "inspect --preset nano --initial", "--initial");
}

/// R058, R322.
#[test]
fn nearest_tokens() {
    let table = tensor("--tensor embed.weight");
    let rows: Vec<&[f64]> = table.chunks(16).collect();
    let found = object("inspect --model m --similar s");
    let id = found["similar"]["id"].as_u64().unwrap() as usize;
    assert_eq!(json!(id), object("tokenize --model m s")["ids"][0]);
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let cosine = |other: usize| dot(rows[id], rows[other]) / (norm(rows[id]) * norm(rows[other]));
    let near_ones = found["similar"]["nearest"].as_array().unwrap();
    let mut best: Vec<f64> = (0..rows.len()).filter(|other| *other != id).map(cosine).collect();
    best.sort_by(|a, b| b.total_cmp(a));
    assert_eq!(near_ones.len(), 10);
    for (one, best) in near_ones.iter().zip(best) {
        near(one["cosine"].as_f64().unwrap(), best);
        near(best, cosine(one["id"].as_u64().unwrap() as usize));
    }
    // a number that is no token's text is an id
    assert!(ok("inspect --model m --similar 0").starts_with("nearest to \"\\n\" (id 0)"));
    fails(1, "inspect --model m --similar star", "not one token");
    fails(1, "inspect --model m --similar 999", "999");
    fails(1, "inspect --preset nano --similar star", "token's id");
}

/// R192, R320.
#[test]
fn the_likeliest_next_tokens() {
    let next = object("inspect --model m --prompt star --next")["next"].clone();
    let probs = tensor("--tensor probs");
    let v = probs.len() / 4;
    for (t, all) in probs.chunks(v).enumerate() {
        let best = next[t].as_array().unwrap();
        assert_eq!(best.len(), 5);
        let mut sorted = all.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        for (one, p) in best.iter().zip(sorted) {
            near(one["probability"].as_f64().unwrap(), p);
            near(p, all[one["id"].as_u64().unwrap() as usize]);
        }
    }
    let shown = ok("inspect --model m --prompt star --next");
    let last = shown.lines().last().unwrap();
    let (piece, p) = (&next[3][0]["piece"], next[3][0]["probability"].as_f64().unwrap());
    assert!(last.starts_with("3 ") && last.contains("\"r\""), "{shown}");
    assert!(last.contains(&format!("{piece} {:.1}%", 100.0 * p)), "{piece} {p} in\n{shown}");
}

/// R265.
#[test]
fn segments_of_a_prompt() {
    let bert = "inspect --preset nano --n-segment 2 --d-model 16 --n-head 2 --n-layer 1 --tokens 3,3";
    let of = |rest: &str| {
        let found = object(&format!("{bert} {rest} --tensor hook_embed_sum --tensor segment_embed.weight"));
        [0, 1].map(|i| numbers(&found["tensors"][i]["values"]))
    };
    let ([zeros, table], [mixed, _]) = (of(""), of("--segments 0,1"));
    assert_eq!(zeros[..16], mixed[..16]);
    for c in 0..16 {
        near(mixed[16 + c] - zeros[16 + c], table[16 + c] - table[c]);
    }
    assert!(norm(&table) > 0.0);
    fails(1, &format!("{bert} --segments 0,1,1"), "3 segments for 2 tokens");
    fails(1, &format!("{bert} --segments 0,2"), "segment 2");
    fails(1, "inspect --model m --prompt st --segments 0,1", "n_segment is 0");
}

/// B > 1: what is computed of several prompts is what is computed of each.
#[test]
fn several_sequences_beside_each_other() {
    let both = object("inspect --model m --prompt star --prompt high --tensor blocks.1.attn.hook_pattern --next");
    let alone = ["star", "high"].map(|prompt| {
        object(&format!("inspect --model m --prompt {prompt} --tensor blocks.1.attn.hook_pattern --next"))
    });
    assert_eq!(both["tokens"], json!([alone[0]["tokens"], alone[1]["tokens"]]));
    assert_eq!(both["next"], json!([alone[0]["next"], alone[1]["next"]]));
    assert!(alone[0]["tokens"][0].is_number() && both["tensors"][0]["shape"] == json!([2, 2, 4, 4]));
    let values = |found: &Value| numbers(&found["tensors"][0]["values"]);
    assert_eq!(values(&both), [values(&alone[0]), values(&alone[1])].concat());
    let ids =
        alone.each_ref().map(|one| numbers(&one["tokens"]).iter().map(f64::to_string).collect::<Vec<_>>().join(","));
    let typed =
        object(&format!("inspect --model m --tokens {};{} --tensor blocks.1.attn.hook_pattern --next", ids[0], ids[1]));
    assert_eq!((&typed["tokens"], &typed["tensors"]), (&both["tokens"], &both["tensors"]));

    let prompts = "inspect --model m --prompt star --prompt high";
    let shown = ok(&format!("{prompts} --tensor blocks.0.attn.hook_pattern --head 1"));
    let second = shown.split("[batch 1]").nth(1).unwrap_or_else(|| panic!("{shown}"));
    assert_eq!(second.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>(), ["h", "i", "g", "h"]);
    assert!(ok(&format!("{prompts} --tensor blocks.0.attn.hook_pattern --view heat")).contains("[batch 1, head 1]"));
    let table = ok(&format!("{prompts} --table"));
    assert!(
        table.starts_with("sequence 0, 4 tokens: \"s\"") && table.contains("\nsequence 1, 4 tokens: \"h\""),
        "{table}"
    );
    let next = ok(&format!("{prompts} --next"));
    let last: Vec<&str> = next.lines().last().unwrap().split_whitespace().collect();
    assert!(next.contains("sequence 1:\npos") && last[..2] == ["3", "\"h\""], "{next}");
    fails(1, "inspect --model m --prompt star --prompt sky", "sequence 0 has 4 tokens and sequence 1 has 3");
    fails(2, "inspect --model m --prompt - --prompt -", "one standard input");
    fails(2, "inspect --model m --tokens '1,2;x'", "`x` is not a token id");
}

/// R299, R311: ids as a batch, and each token with the one that it predicts; of a text the windows that training takes.
#[test]
#[ignore = "gate"]
fn windows_of_a_text_and_their_targets() {
    let all = numbers(&object("tokenize --model m @rhyme.txt")["ids"]);
    let found = object("inspect --model m --data rhyme.txt --tensor input");
    assert_eq!(found["tokens"], json!((0..4).map(|b| &all[16 * b..16 * b + 16]).map(ids).collect::<Vec<_>>()));
    let input = &found["tensors"][0];
    assert_eq!(input["targets"], json!((0..4).map(|b| &all[16 * b + 1..16 * b + 17]).map(ids).collect::<Vec<_>>()));
    assert!(input.get("sparse").is_none());
    let two = object("inspect --model m --data rhyme.txt --batch-size 2");
    assert_eq!(two["tokens"], json!([found["tokens"][0], found["tokens"][1]]));
    let star = object("inspect --model m --prompt star --tensor input");
    assert_eq!(star["tensors"][0]["targets"], json!([star["tokens"][1], star["tokens"][2], star["tokens"][3], null]));

    let shown = ok("inspect --model m --prompt star --tensor input");
    let id = |at: usize| star["tokens"][at].to_string();
    let line = |n: usize| shown.lines().rev().nth(n).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(line(4), ["pos", "token", "id", "target", "id"]);
    assert_eq!(line(1), ["2", "\"a\"", &id(2), "\"r\"", &id(3)]);
    assert_eq!(line(0), ["3", "\"r\"", &id(3), "-", "-"]);
    let windows = ok("inspect --model m --data rhyme.txt --tensor input");
    assert!(windows.contains("[4 rows x 16 columns]") && windows.contains("sequence 3:\npos"), "{windows}");
    fails(2, "inspect --preset nano --data rhyme.txt", "--data");
    fails(2, "inspect --model m --data rhyme.txt --prompt star", "--prompt");
    fails(2, "inspect --model m --data rhyme.txt --batch-size 0", "--batch-size");
    fails(1, "inspect --model m --data builtin:star", "built-in corpus `star`");
    // a tokenizer that numbers only some of another's ids: both are shown
    let rhyme = "train --data builtin:s3 --tokenizer cl100k_base:dense --context-length 4 --val-fraction 0 --steps 1 \
                 --sample 0";
    let out = run_in(folder(), &format!("{rhyme} --d-model 8 --n-head 1 --n-layer 1 --out dense --threads 1"));
    assert!(out.status.success(), "{}", text(&out.stderr));
    let found = object("inspect --model dense --prompt 'dog jumps' --tensor input");
    assert_eq!(found["tensors"][0]["sparse"], object("tokenize --tokenizer cl100k_base 'dog jumps'")["ids"]);
    assert_ne!(found["tensors"][0]["sparse"], found["tokens"]);
    assert!(ok("inspect --model dense --prompt 'dog jumps' --tensor input").contains("id  cl100k_base id"));
}

fn ids(of: &[f64]) -> Vec<u64> {
    of.iter().map(|id| *id as u64).collect()
}

/// A mask from a file: with the causal one all is as ever, with another the weights are the softmax of what it leaves.
#[test]
fn a_mask_from_a_file() {
    let mask = |name: &str, rows: &str| fs::write(folder().join(name), rows).unwrap();
    mask("causal.txt", "x...\nxx..\nxxx.\nxxxx\n");
    let plain = tensor("--tensor logits");
    tensor("--tensor logits --mask-file causal.txt").iter().zip(&plain).for_each(|(a, b)| near(*a, *b));
    mask("odd.txt", "1 0 0 1\n1 1 0 0\n0 0 1 0\n1 0 1 1\n");
    let pattern = tensor("--mask-file odd.txt --tensor blocks.0.attn.hook_pattern");
    let raw = tensor("--tensor blocks.0.attn.hook_raw_scores");
    let sees = [[1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 1, 0], [1, 0, 1, 1]].concat().repeat(2);
    for (row, ((raw, p), sees)) in raw.chunks(4).zip(pattern.chunks(4)).zip(sees.chunks(4)).enumerate() {
        let shares: Vec<f64> = raw.iter().zip(sees).map(|(s, sees)| f64::from(*sees) * s.exp()).collect();
        let sum: f64 = shares.iter().sum();
        shares
            .iter()
            .zip(p)
            .for_each(|(share, p)| assert!((share / sum - p).abs() < 1e-5, "row {row}: {p}, {share} / {sum}"));
    }
    let heat =
        ok("inspect --model m --prompt star --mask-file odd.txt --tensor blocks.0.attn.hook_pattern --view heat \
            --head 0");
    assert_eq!(heat.lines().nth(4).unwrap(), "a ·      ·      ███1.0 ·");
    let out = run_in(folder(), "inspect --model m --prompt star --mask-file odd.txt --tensor logits");
    assert!(text(&out.stderr).contains("(causal) does not apply") && text(&out.stderr).lines().count() == 1);
    mask("none.txt", "1 0 0 0\n1 1 0 0\n0 0 0 0\n1 1 1 1\n");
    fails(1, "inspect --model m --prompt star --mask-file none.txt", "line 3 of the mask hides every key");
    fails(1, "inspect --model m --prompt sta --mask-file odd.txt", "for 4 tokens and there are 3");
    fails(2, "inspect --model m --prompt star --mask-file odd.txt --backward", "--backward");
    fails(2, "inspect --model m --prompt star --mask-file odd.txt --tensor logits.grad", "gradients");
}

/// What has no weights can be looked at otherwise; the weights stay, and nothing else can be changed.
#[test]
fn a_trained_model_with_another_scale_or_mask() {
    let raw = |rest: &str| tensor(&format!("--tensor blocks.0.attn.hook_raw_scores {rest}"));
    raw("--attention-scale false").iter().zip(raw("")).for_each(|(plain, scaled)| near(*plain, scaled * 8f64.sqrt()));
    let pattern = tensor("--tensor blocks.0.attn.hook_pattern --mask none");
    for (p, raw) in pattern.chunks(4).zip(raw("").chunks(4)) {
        let sum: f64 = raw.iter().map(|s| s.exp()).sum();
        p.iter().zip(raw).for_each(|(p, s)| near(*p, s.exp() / sum));
    }
    // what it is to predict is still the next token
    let found = object("inspect --model m --prompt star --mask none --tensor input");
    assert_eq!(found["tensors"][0]["targets"][0], found["tokens"][1]);
    let (pre, post) =
        (tensor("--tensor blocks.0.mlp.hook_pre"), tensor("--activation relu --tensor blocks.0.mlp.hook_post"));
    pre.iter().zip(&post).for_each(|(x, y)| assert_eq!(x.max(0.0), *y));
    let normalized = tensor("--norm rms --tensor blocks.0.ln1.hook_normalized");
    let x = tensor("--tensor blocks.0.hook_resid_pre");
    for (n, x) in normalized.chunks(16).zip(x.chunks(16)) {
        let scale = (x.iter().map(|x| x * x).sum::<f64>() / 16.0 + 1e-5).sqrt();
        n.iter().zip(x).for_each(|(n, x)| near(*n, x / scale));
    }
    let out = run_in(folder(), "inspect --model m --prompt star --norm rms --mask none --table");
    let note = text(&out.stderr);
    assert_eq!(note.lines().count(), 1, "{note}");
    assert!(
        note.contains("m was trained with mask causal, norm layer; here it runs with mask none, norm rms"),
        "{note}"
    );
    for flag in ["--n-layer 3", "--n-head 4", "--positions sinusoidal", "--norm-place post", "--context-length 20"] {
        fails(2, &format!("inspect --model m --prompt star {flag}"), "its weights are for that");
    }
    fails(2, "train --from m --data rhyme.txt --mask none --out other", "fine-tuning cannot change it");
}

#[test]
fn names_are_looked_up_before_anything_is_printed() {
    fails(1, "inspect --model m --prompt star --listing --next --masks --tensor hook_embd", "hook_embed");
    let found = object("inspect --model m --prompt star --listing");
    assert!(found["listing"].as_str().unwrap().contains("attend") && found["rows"].is_array());
}

/// R017, R018, R026, R323, R324.
#[test]
#[ignore = "gate"]
fn a_text_counted_and_a_vocabulary_printed() {
    let stats = object("tokenize --tokenizer cl100k_base --stats 'Clarify – clearly, clearly'")["stats"].clone();
    assert_eq!((&stats["bytes"], &stats["chars"], &stats["max_id"]), (&json!(28), &json!(26), &json!(100_069)));
    let shown = ok("tokenize --tokenizer cl100k_base --stats 'Clarify – clearly, clearly'");
    assert!(shown.contains("100069 \"Clar\"") && shown.contains("characters    26"), "{shown}");

    let s0 = "tokenize --tokenizer word 'we like to walk and we like to run'";
    assert_eq!(object(s0)["ids"], json!([0, 1, 2, 3, 4, 0, 1, 2, 5]));
    assert_eq!(object(&format!("{s0} --one-based"))["ids"], json!([1, 2, 3, 4, 5, 1, 2, 3, 6]));
    let listed = ok(&format!("{s0} --vocab --one-based"));
    assert_eq!(listed.lines().collect::<Vec<_>>()[..2], ["1  \"we\"", "2  \"like\""]);
    assert!(listed.ends_with("6  \"run\"\n[6 tokens]\n"), "{listed}");
    let found = object(&format!("{s0} --vocab"))["vocab"].clone();
    assert_eq!((&found["first_id"], &found["tokens"][5]), (&json!(0), &json!("run")));
    assert_eq!(ok("tokenize --tokenizer gpt2 --decode --one-based 9247,4484,10212"), "cat eat mouse\n");
    fails(1, "tokenize --decode --one-based 0", "counts from 1");
    let large = ok("tokenize --tokenizer gpt2 --vocab");
    assert!(large.contains("50,217 more") && large.ends_with("<|endoftext|>\"\n[50,257 tokens]\n"), "{large}");
    assert!(ok("tokenize --model m --vocab").contains(" 0  \"\\n\""));

    let rows = object(&format!("{s0} --one-hot"))["one_hot"].clone();
    assert_eq!(rows.as_array().unwrap().len(), 9);
    assert_eq!(numbers(&rows[8]), [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    assert!(ok(&format!("{s0} --one-hot")).contains("8  0  0  0  0  0  1\n\n[9 rows x 6 columns]"));
    fails(1, "tokenize --one-hot hello", "50,257 columns");
    fails(1, "tokenize --tokenizer char --vocab", "learned from a text");
    fails(2, "tokenize", "TEXT is missing");
    fails(2, "tokenize --decode --stats 1,2", "--stats");
    // "The Formulated GPT-2" counts from 1: the same matrix, its rows and columns numbered so, and each 1 in the column
    // of its id
    let both = ok(&format!("{s0} --one-hot --one-based"));
    let ids = object(&format!("{s0} --one-based"))["ids"].clone();
    let table: Vec<Vec<&str>> = both.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(table[0], ["1", "2", "3", "4", "5", "6"]);
    for (at, (row, id)) in table[1..].iter().zip(numbers(&ids)).enumerate() {
        let column = row[1..].iter().position(|cell| *cell == "1").unwrap();
        assert_eq!((row[0], table[0][column]), (&*(at + 1).to_string(), &*id.to_string()), "{both}");
    }
    assert_eq!(object(&format!("{s0} --one-hot --one-based"))["one_hot"], rows);
}

/// R195, R197.
#[test]
fn a_continuation_in_logarithms() {
    let found = object("eval --model m --prompt st --continuation ar");
    let losses = tensor("--tensor losses");
    let log_probs = numbers(&found["log_probs"]);
    assert_eq!(log_probs.len(), 2);
    near(log_probs[0], -losses[1]);
    near(log_probs[1], -losses[2]);
    near(found["total"].as_f64().unwrap(), log_probs[0] + log_probs[1]);
    let shown = ok("eval --model m --prompt st --continuation ar");
    assert!(shown.contains(&format!("{:.4}", log_probs[1])) && shown.contains("all 2"), "{shown}");
    assert!(object("eval --model m --data rhyme.txt")["loss"].is_number());
    fails(2, "eval --model m --prompt st --continuation ar --data rhyme.txt", "--data");
    fails(2, "eval --model m --prompt st", "--continuation");
    fails(2, "eval --model m --continuation ar", "--prompt");
    fails(2, "eval --model m --prompt st --continuation ar --batch-size 2", "--batch-size");
    fails(2, "eval --model m", "--data");
    fails(1, "eval --model m --prompt st --continuation ''", "nothing to score");
    fails(1, "eval --model m --prompt '' --continuation ar", "no tokens to continue from");
    fails(1, "eval --model m --prompt st --continuation Ω", "Ω");
    fails(1, "eval --model m --prompt 'Up above the wor' --continuation 'ld'", "context");
}
