//! `convert`: a model of one program rewritten for another, and the check that it is the same.

use crate::models::{SENTENCE_PIECE, along, list, sentence_piece};
use crate::show;
use anyhow::{Context, Result, anyhow, bail};
use limpid::backend::Backend;
use limpid::checkpoint::store::{Dtype, rounded};
use limpid::checkpoint::{
    Carried, Checkpoint, CheckpointError, Format, ModelData, ModelValues, PaddedTable, SHARD_BYTES, gguf, is_part,
    regained, save,
};
use limpid::config::{Axis, Config};
use limpid::model::{Mode, Model, Param};
use limpid::ops::Batch;
use limpid::tokenizer::{Tokenizer, TokenizerError};
use limpid::{Machine, memory};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Convert a model for another program: limpid, HuggingFace's transformers, llama.cpp (GGUF), llm.c.
///
/// The format of SRC is recognised. Formats differ in what they can express: a model that the target cannot express is
/// refused, with the reason. The tokenizer is converted too, if there is one.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  limpid convert gpt2 mine                    HuggingFace's folder as limpid's
  limpid convert runs/1 out --to hf           for transformers
  limpid convert runs/1 model.gguf --dtype f16 --verify
  limpid convert gpt2_124M.bin gpt2 --to hf   llm.c's file for transformers
  limpid convert gpt2 merged --adapter lora   the model with a LoRA adapter in its weights")]
pub struct Args {
    /// A folder of limpid's or HuggingFace's, a .gguf, or a .bin of llm.c's
    src: PathBuf,
    /// Where to: a folder, or a file for gguf and llmc
    dst: PathBuf,
    /// A LoRA adapter to merge into it: a folder of limpid's or PEFT's (repeatable: their sum is added)
    #[arg(long, value_name = "DIR")]
    adapter: Vec<PathBuf>,
    /// Require that SRC has this format: limpid, hf, gguf, llmc
    #[arg(long, value_name = "FORMAT")]
    from: Option<Format>,
    /// limpid, hf, gguf, llmc [default: by DST's extension; for a folder, hf if SRC is limpid's, else limpid]
    #[arg(long, value_name = "FORMAT")]
    to: Option<Format>,
    /// Type of the stored matrices: f32, f16, bf16; GGUF only: q8_0, q4_0, q4_k [default: as in SRC]
    #[arg(long, value_name = "TYPE")]
    dtype: Option<Dtype>,
    /// The tokenizer to include instead of SRC's, by name or file; `none` for none
    #[arg(long, value_name = "NAME|FILE")]
    tokenizer: Option<String>,
    /// Split a HuggingFace folder's weights into files of this many megabytes [default: 5000]
    #[arg(long, value_name = "MB", value_parser = shard_size)]
    max_shard_size: Option<usize>,
    /// Replace DST in one step: a file, or a folder that holds nothing but a model's files
    #[arg(long)]
    force: bool,
    /// Skip the checksum of SRC, for a file of limpid's that was changed on purpose
    #[arg(long, hide_short_help = true)]
    no_verify: bool,
    /// Open both models, compare every parameter and the ids of sample texts, and run the same tokens through both
    #[arg(long)]
    verify: bool,
    /// Print the result as JSON on stdout
    #[arg(long)]
    json: bool,
}

fn shard_size(text: &str) -> Result<usize, String> {
    let size = text.parse().ok().filter(|n| (1..=1_000_000).contains(n));
    size.ok_or(format!("`{text}` is not a number of megabytes from 1 to 1000000"))
}

pub fn run(args: Args) -> Result<()> {
    let source = crate::models::adapted(&args.src, &args.adapter, !args.no_verify)?;
    let conversion = Conversion::decide(&args, &source)?;
    let start = Instant::now();
    conversion.write()?;
    let seconds = start.elapsed().as_secs_f64();
    let outcome = conversion.outcome(seconds)?;
    if args.json {
        show::json(&conversion.json(&outcome))?;
    } else {
        show::out(&show::pairs(&conversion.rows(&outcome)))?;
    }
    if let Some(wrong) = outcome.proof.and_then(|p| p.wrong) {
        bail!("the two models differ: {wrong}");
    }
    Ok(())
}

/// What is to be written.
struct Conversion<'a> {
    args: &'a Args,
    source: &'a Checkpoint,
    model: Model,
    format: Format,
    /// Type of the stored matrices.
    dtype: Dtype,
    tokenizer: Option<Tokenizer>,
    carried: Carried,
}

/// What was written.
struct Outcome {
    seconds: f64,
    /// Types of the stored matrices.
    types: Vec<String>,
    /// Why the tokenizer was not written.
    unfit: Option<TokenizerError>,
    /// Tables with rows that are not read, if that is asked for.
    padded: Vec<PaddedTable>,
    proof: Option<Proof>,
}

impl Conversion<'_> {
    /// Decides what is not asked for, and refuses what cannot be.
    fn decide<'a>(args: &'a Args, source: &'a Checkpoint) -> Result<Conversion<'a>> {
        if let Some(from) = args.from.filter(|from| *from != source.format) {
            bail!("{} is of the format {}, not {from}", args.src.display(), source.format);
        }
        let ending = args.dst.extension().map(|e| e.to_ascii_lowercase());
        let named = Format::ALL
            .iter()
            .copied()
            .find(|format| format.ending().is_some_and(|known| ending.as_ref().is_some_and(|ending| ending == known)));
        let other = if source.format == Format::Limpid { Format::HuggingFace } else { Format::Limpid };
        let format = args.to.or(named).unwrap_or(other);
        check_place(args, source, format)?;
        let tokenizer = match args.tokenizer.as_deref() {
            None => source.tokenizer.clone(),
            Some("none") => None,
            Some(name) => Some(Tokenizer::known(name)?),
        };
        let vocab_size = source.config.vocab_size;
        let tokens = tokenizer.as_ref().map_or(vocab_size, Tokenizer::vocab_size);
        if tokens > vocab_size {
            bail!(
                "the tokenizer has {tokens} tokens, the model's vocab_size is {vocab_size}: they do not belong \
                 together"
            );
        }
        let carried = match args.tokenizer {
            None => source.carried.clone(),
            Some(_) => source.carried.clone().without_tokenizer(),
        };
        let dtype = args.dtype.clone().unwrap_or(source.dtype().in_format(format));
        Ok(Conversion { args, source, model: outline(&source.config)?, format, dtype, tokenizer, carried })
    }

    fn write(&self) -> Result<()> {
        let Conversion { args, source, model, .. } = self;
        let values = |param: &Param| Ok(source.values(model, param)?.into_owned());
        // what is said of a tokenizer is of no other
        let metadata = source.whole_metadata()?.map(|metadata| match &args.tokenizer {
            None => metadata,
            Some(_) => metadata.without(|key| key.starts_with("tokenizer.")),
        });
        let data = ModelData {
            tokenizer: self.tokenizer.as_ref(),
            chat_template: source.chat_template.as_deref(),
            carried: Some(&self.carried),
            shard_bytes: args.max_shard_size.map_or(SHARD_BYTES, |megabytes| megabytes as u64 * 1_000_000),
            rows: &|param, rows| source.rows(model, param, rows),
            keep_types: args.dtype.is_none(),
            metadata: metadata.as_ref(),
            ..ModelData::of(&source.config, ModelValues::Read(&values))
        };
        save(&args.dst, self.format, &self.dtype, &data).map_err(|error| match error {
            CheckpointError::Tokenizer(error) => {
                let train: String = error.settings().iter().map(|flag| format!(" (`limpid train --{flag}`)")).collect();
                anyhow!("{error}; --tokenizer none leaves it out{train}")
            }
            error => error.into(),
        })
    }

    /// What was written, compared with the source if that is asked for.
    fn outcome(&self, seconds: f64) -> Result<Outcome> {
        let Conversion { args, source, format, .. } = self;
        let tokenizer = self.tokenizer.as_ref();
        let unfit = tokenizer.and_then(|tokenizer| format.tokenizer_error(tokenizer));
        let written = tokenizer.filter(|_| unfit.is_none());
        let padded = if args.verify { source.padded()? } else { vec![] };
        let proof = if args.verify { Some(verify(source, &args.dst, written)?) } else { None };
        // rows that are no blocks of what is asked for become others; tables of positions are F32 beside any type
        let as_they_were = args.dtype.is_none() && source.format.mixes_types() || self.dtype == Dtype::F32;
        let mut types = if format.mixes_types() { types(&args.dst)? } else { vec![self.dtype.to_string()] };
        types.retain(|name| as_they_were || *name != Dtype::F32.to_string());
        Ok(Outcome { seconds, types, unfit, proof, padded })
    }

    /// Rows of the vocabulary that no token has.
    fn rows_without_token(&self) -> usize {
        self.tokenizer.as_ref().map_or(0, |tokenizer| self.source.config.vocab_size - tokenizer.vocab_size())
    }

    fn json(&self, outcome: &Outcome) -> serde_json::Value {
        let Conversion { source, format, carried, .. } = self;
        let proof = outcome.proof.as_ref();
        let [along, behind, unsaid] = source.parted(carried, *format, self.args.dtype.is_none());
        serde_json::json!({
            "from": source.format, "to": format, "dtype": outcome.types.join(", "),
            "parameters": self.model.parameter_count(),
            "left_out": source.left_out, "ignored": carried.ignored, "carried": along, "left_behind": behind,
            "padded": outcome.padded, "metadata_left_out": unsaid, "rows_without_token": self.rows_without_token(),
            "seconds": outcome.seconds,
            "verified": proof.map(|p| p.wrong.is_none()),
            "logits_differ_by": proof.map(|p| p.apart),
            "texts_compared": proof.map(|p| p.texts), "of_these_after_nfc": proof.map(|p| p.composed),
            "first_difference": proof.and_then(|p| p.wrong.clone()),
        })
    }

    fn rows(&self, outcome: &Outcome) -> Vec<(&'static str, String)> {
        let Conversion { args, source, format, .. } = self;
        let types = outcome.types.join(", ");
        let time = show::duration(outcome.seconds);
        let mut rows = vec![
            ("read", format!("{} ({}): {}", args.src.display(), source.format, source.config)),
            ("wrote", format!("{} ({format}, {types}) in {time}", args.dst.display())),
        ];
        for padded in &outcome.padded {
            rows.push(("left out", show::padding(padded)));
        }
        if !source.left_out.is_empty() {
            rows.push(("left out", format!("{}: limpid computes nothing with them", list(&source.left_out))));
        }
        rows.extend(along(source, &self.carried, *format, args.dtype.is_none()));
        if let Some(asked @ Dtype::Blocks(_)) = &args.dtype
            && !outcome.types.contains(&asked.to_string())
        {
            rows.push(("types", format!("no matrix is stored as {asked}, because no matrix has rows of whole blocks")));
        }
        rows.extend(self.about_tokenizer(outcome).into_iter().map(|what| ("tokenizer", what)));
        if let Some(Proof { of, apart, largest, tokens, texts, composed, .. }) = &outcome.proof {
            let found = format!("{of} differ by at most {apart:.2e} over {tokens} tokens (they reach {largest:.3})");
            rows.push(("compared", found));
            if *texts > 0 {
                let nfc = if *composed > 0 { format!(", of {composed} after NFC") } else { String::new() };
                rows.push(("", format!("ids and text of {texts} samples are the same{nfc}")));
            }
        }
        rows
    }

    /// How the written tokenizer differs from the model or the source's.
    fn about_tokenizer(&self, outcome: &Outcome) -> Vec<String> {
        let Conversion { args, source, format, .. } = self;
        let Some(tokenizer) = &self.tokenizer else {
            let piece = SENTENCE_PIECE.iter().find(|name| args.tokenizer.is_none() && source.path.join(name).exists());
            let none = "none: --tokenizer NAME|FILE puts one in".to_string();
            return vec![piece.map_or(none, |name| sentence_piece(name))];
        };
        let mut told = vec![];
        let without = self.rows_without_token();
        if without > 0 {
            told.push(format!(
                "has {} tokens, and the model rows for {}: {without} of them have none",
                tokenizer.vocab_size(),
                source.config.vocab_size
            ));
        }
        if let Some(why) = &outcome.unfit {
            told.push(format!("not written: {why}"));
        }
        told.extend(format.tokenizer_differences(tokenizer).into_iter().map(String::from));
        told
    }
}

/// What files of programs end in: a folder, or another program's file, of such a name would be taken for one.
#[rustfmt::skip]
const ENDINGS: &[&str] = &[
    "bin", "ckpt", "ggml", "gguf", "gz", "h5", "json", "keras", "mlmodel", "msgpack", "nemo", "npy", "npz", "onnx",
    "pb", "pickle", "pkl", "pt", "pth", "safetensors", "tar", "tflite", "zip", "zst",
];

/// Refuses a DST by which something would be lost, or that is called what it is not.
fn check_place(args: &Args, source: &Checkpoint, format: Format) -> Result<()> {
    let dst = args.dst.display();
    let is = if format.is_folder() { "a folder" } else { "one file" };
    let place = resolved(&args.dst)?;
    let adapters = source.adapters.iter().map(|adapter| &*adapter.path);
    let tokenizer = args.tokenizer.as_deref().map(Path::new).filter(|path| path.is_file());
    for used in [&*args.src, &*source.path].into_iter().chain(adapters).chain(tokenizer) {
        let shown = used.display();
        let Ok(used) = used.canonicalize() else { continue };
        let part = place.file_name().is_some_and(|name| is_part(&name.display().to_string()));
        if place == used {
            bail!("{shown} would be written over itself: give another DST");
        }
        if place.starts_with(&used) && (format.is_folder() || part) || used.starts_with(&place) {
            bail!("{dst} and {shown}, its source, lie one inside the other: give another DST");
        }
    }
    if args.dst.exists() && args.dst.is_dir() != format.is_folder() {
        bail!("{dst} is there already, and a model as {format} is {is}: give another DST");
    }
    let empty = std::fs::read_dir(&args.dst).is_ok_and(|mut entries| entries.next().is_none());
    if !args.force && !empty && std::fs::symlink_metadata(&args.dst).is_ok() {
        bail!("{dst} is there already: give another DST, or replace it with --force");
    }
    let ending = args.dst.extension().map(|end| end.display().to_string().to_lowercase()).unwrap_or_default();
    if ENDINGS.contains(&&*ending) && Some(&*ending) != format.ending() {
        bail!(
            "{dst} ends in .{ending}, and a model as {format} is {is}: limpid writes folders ({}), {}; give another \
             DST, or another --to",
            Format::folders(),
            Format::files()
        );
    }
    Ok(())
}

/// The place that a path is, whether something is there or not: without links and steps back.
fn resolved(path: &Path) -> Result<PathBuf> {
    let whole = std::path::absolute(path).with_context(|| path.display().to_string())?;
    let known = whole.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let Some((above, real)) = known else { return Ok(whole) };
    let rest = whole.strip_prefix(above)?;
    Ok(if rest.as_os_str().is_empty() { real } else { real.join(rest) })
}

/// The types of the matrices in a GGUF file.
fn types(path: &Path) -> Result<Vec<String>> {
    let store = gguf::open(path)?.1;
    let matrices = store.names().filter_map(|name| store.get(name)).filter(|stored| stored.shape.len() > 1);
    let all: BTreeSet<String> = matrices.map(|stored| stored.dtype.to_string()).collect();
    Ok(all.into_iter().collect())
}

fn outline(config: &Config) -> Result<Model> {
    Ok(Model::new(config, Mode::Inspect { batch: 1, context: 1 })?)
}

/// What running both showed.
struct Proof {
    /// What was compared: logits, or the hidden states of a model without a head.
    of: &'static str,
    apart: f32,
    largest: f32,
    tokens: usize,
    /// Texts of which ids and text were compared.
    texts: usize,
    /// Of these, texts that the written tokenizer was given in NFC.
    composed: usize,
    /// The first tensor that differs more than rounding allows.
    wrong: Option<String>,
}

/// Opens `dst` and holds it against `source`: every parameter must be its rounded self, and the same tokens must give
/// what the source's own configuration makes of the written parameters; `tokenizer` and the written one must be one.
fn verify(source: &Checkpoint, dst: &Path, tokenizer: Option<&Tokenizer>) -> Result<Proof> {
    let written = Checkpoint::open(dst).with_context(|| "what was written cannot be opened again")?;
    let (ours, theirs) = (outline(&source.config)?, outline(&written.config)?);
    let (texts, composed, mut wrong) = match (tokenizer, &written.tokenizer) {
        (Some(before), Some(after)) => {
            // an adapter may have been taught another end of its turns
            let taught = if source.adapters.is_empty() { vec![] } else { source.end_tokens() };
            same_ids((before, &taught), after, written.format.is_folder())
        }
        (Some(_), None) => (0, 0, Some("the tokenizer was not written".into())),
        (None, _) => (0, 0, None),
    };
    for param in &ours.params {
        if wrong.is_some() {
            break;
        }
        let there = theirs.param(&param.name).with_context(|| format!("`{}` was not written", param.name))?;
        let (was, is) = (source.values(&ours, param)?, written.values(&theirs, there)?);
        let was = regained(param, was, &source.config, &written.config);
        let expected = expected(param, &was, source.stored_as(&ours, param), written.stored_as(&theirs, there));
        if let Some(at) = (0..is.len()).find(|i| is[*i].to_bits() != expected[*i].to_bits()) {
            wrong = Some(format!("`{}` at {at} was {} and is {}", param.name, was[at], is[at]));
        }
        if let Some(at) = was.iter().position(|v| !v.is_finite()) {
            wrong = Some(format!("`{}` at {at} is {}: not a number to compute with", param.name, was[at]));
        }
    }
    let c = &source.config;
    let tokens = 16.min(c.context_length);
    let ids = (0..tokens as u64).map(|i| ((i * 7919 + 13) % c.vocab_size as u64) as u32).collect();
    let batch = Batch::of_sequences(ids, vec![0; tokens], tokens);
    let mode = Mode::Inspect { batch: 1, context: tokens };
    let machine = Machine::cpu(crate::machine::cores());
    let run = |config: &Config, load: &dyn Fn(&Model, &mut dyn Backend) -> Result<()>| -> Result<Ran> {
        let model = Model::new(config, mode)?;
        memory::fits(&model, None, &machine)?;
        let mut cpu = machine.start(&model)?;
        load(&model, &mut *cpu)?;
        cpu.feed(&batch)?;
        cpu.forward(model.ops())?;
        Ok((model, cpu))
    };
    let output = |(model, cpu): &Ran| match model.logits() {
        Some(logits) => cpu.read(logits),
        None => cpu.read(model.ops().last().expect("a model has ops").output()),
    };
    let before = output(&run(c, &|model, cpu| Ok(source.load(model, cpu)?))?)?;
    let after = run(&written.config, &|model, cpu| Ok(written.load(model, cpu)?))?;
    let found = output(&after)?;
    let largest = before.iter().fold(0f32, |m, v| m.max(v.abs()));
    let apart = before.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    if wrong.is_none() {
        // the source's configuration with the written parameters: what differs now is no rounding
        let mixed = run(c, &|model, cpu| {
            for param in &model.params {
                let there = theirs.param(&param.name).context("written above")?;
                let values = regained(param, written.values(&theirs, there)?, &written.config, &source.config);
                cpu.write(param.region, &values)?;
            }
            Ok(())
        })?;
        wrong = first_difference(&mixed, &after)?;
    }
    let of = if c.lm_head { "logits" } else { "hidden states" };
    Ok(Proof { of, apart, largest, tokens, texts, composed, wrong })
}

/// Texts that tokenizers cut in many ways: words, digits, blanks, lines, cases, marks, scripts, characters of several
/// parts, a blank at either end, nothing.
const TEXTS: &[&str] = &[
    "The quick brown fox jumps over the lazy dog.",
    "don't WON'T it's I'll -- \"quoted\", (bracketed) [MASK] <mask> </s> <unk>",
    " 0 1 12 123 1234 12345 3.14159 1,000,000 2026-11-23 0x1F 50% $9.99",
    "a  b   c    d\ttab\n\n\nthree lines\r\nend ",
    "fn main() { let x = vec![1, 2]; }\n    if a != b && c <= d:\n\treturn -1",
    "Zürich, naïve façade, Ångström, ﬁne ½ Ⅳ ①, e\u{301} and \u{e9}",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดี",
    "你好，世界。こんにちは世界 안녕하세요 𠜎𠜱",
    "🙂👩\u{200d}👩\u{200d}👧🏽🇨🇭 ☃\u{fe0f} \u{a0}\u{3000}\u{2009}\u{feff}\u{ad}\u{0}\u{7f}",
    "",
    " ",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

/// How many texts with ids were compared, how many of them after NFC, and the first difference: of their ids as text
/// and as a prompt, of the text of these ids, and of the tokens that begin and end texts, `taught` ones too; in a file,
/// which names one, that one. A text that the first tokenizer has no ids for must have none by the other. What the
/// first brings to NFC is given so to that in a file, which leaves texts as they are; texts before which a file puts a
/// blank and the first does not are left out.
fn same_ids((before, taught): (&Tokenizer, &[u32]), after: &Tokenizer, folder: bool) -> (usize, usize, Option<String>) {
    type Encode = fn(&Tokenizer, &str) -> Result<Vec<u32>, TokenizerError>;
    let ways: [Encode; 3] = [Tokenizer::encode, Tokenizer::encode_for_model, Tokenizer::encode_ordinary];
    let mut texts: Vec<String> = TEXTS.iter().map(|text| text.to_string()).collect();
    texts.extend(before.specials().iter().map(|(token, _)| format!("a{token} b {token}c")));
    // its own letters, of which some tokenizers have few
    texts.extend(before.decode(&(0..before.vocab_size().min(500) as u32).collect::<Vec<_>>()));
    let table = if folder { None } else { before.table().ok() };
    let composes = table.as_ref().is_some_and(|table| table.nfc);
    let mut composed = 0;
    if table.is_some_and(|table| table.blank_once) {
        let specials = before.specials();
        texts.retain(|text| !text.starts_with(' ') && !specials.iter().any(|(token, _)| text.contains(token)));
    }
    for text in &texts {
        // the bytes of its ids are the text in NFC
        let nfc = || before.decode(&before.encode_ordinary(text).ok()?).ok();
        let given = if composes { nfc().unwrap_or_else(|| text.clone()) } else { text.clone() };
        composed += usize::from(given != *text);
        for encode in ways {
            let (was, is) = (encode(before, text).ok(), encode(after, &given).ok());
            if was != is {
                let shown = |ids: Option<Vec<u32>>| ids.map_or("none".into(), |ids| format!("{ids:?}"));
                return (0, 0, Some(format!("the ids of {text:?} were {} and are {}", shown(was), shown(is))));
            }
            let [was, is] = [before, after].map(|tokenizer| tokenizer.decode(was.as_deref().unwrap_or_default()).ok());
            if was != is {
                return (0, 0, Some(format!("the ids of {text:?} were the text {was:?} and are {is:?}")));
            }
        }
    }
    let ends = |t: &Tokenizer, more: &[u32]| -> BTreeSet<u32> {
        t.more_ends().into_iter().chain(t.end_of_text()).chain(more.iter().copied()).collect()
    };
    let (was, is) = ((ends(before, taught), before.bos()), (ends(after, &[]), after.bos()));
    // llama.cpp knows more ends by their texts
    let same = was.1 == is.1 && if folder { was.0 == is.0 } else { was.0.is_subset(&is.0) };
    let known = texts.iter().filter(|text| before.encode(text).is_ok()).count();
    let wrong = || format!("the tokens that end and begin a text were {was:?} and are {is:?}");
    (known, composed, (!same).then(wrong))
}

/// What values of a parameter are once rows have been stored in the types that they have there: those of one type
/// already are as they were.
fn expected(param: &Param, was: &[f32], from: Vec<(Range<usize>, Dtype)>, to: Vec<(Range<usize>, Dtype)>) -> Vec<f32> {
    let cols = if param.is_matrix() { param.region.cols } else { 1 };
    let mut all = was.to_vec();
    for (rows, dtype) in to {
        let holds = |own: &Range<usize>| own.start <= rows.start && rows.end <= own.end;
        if from.iter().any(|(own, stored)| holds(own) && *stored == dtype) {
            continue;
        }
        let at = rows.start * cols..rows.end * cols;
        all[at.clone()].copy_from_slice(&rounded(&was[at], &dtype));
    }
    all
}

/// A model that has run, and the backend that has what it made.
type Ran = (Model, Box<dyn Backend>);

/// The first tensor of the forward pass that is not the same in both.
fn first_difference(a: &Ran, b: &Ran) -> Result<Option<String>> {
    for tensor in &a.0.tensors {
        let Some(other) = b.0.tensor(&tensor.name) else { continue };
        let (x, y) = (a.1.read(tensor.region)?, b.1.read(other.region)?);
        let size = x.iter().filter(|v| v.is_finite()).fold(0f32, |m, v| m.max(v.abs()));
        let apart = x.iter().zip(&y).filter(|(a, b)| a.to_bits() != b.to_bits()).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0f32, f32::max);
        if apart > 1e-5 * (1.0 + size) {
            return Ok(Some(format!("`{}` by {apart:.2e} (it reaches {size:.3})", tensor.name)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tokenizer that cuts, frames, ends or knows special tokens otherwise is another one.
    #[test]
    fn tokenizers_that_differ_are_found() {
        let file = |of: &str, by: &str| {
            let whole = r#"{"version": "1.0", "added_tokens": [{"id": 3, "content": "<s>", "special": true}],
                "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "WhitespaceSplit"},
                "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                    "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}},
                "decoder": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"},
                "model": {"type": "WordLevel", "unk_token": "_?", "vocab": {"_?": 0, "the": 1, "\u00e9": 2}}}"#;
            assert!(whole.contains(of));
            Tokenizer::from_json(&whole.replacen(of, by, 1)).unwrap()
        };
        let own = file("NFC", "NFC");
        assert_eq!(same_ids((&own, &[]), &own, true), (TEXTS.len() + 2, 0, None));
        for (of, by, says) in [
            ("NFC", "NFD", "the ids of \"Z"),
            ("WhitespaceSplit", "Whitespace", "the ids of"),
            ("\"special\": true", "\"special\": false", "the ids of"),
            ("\"always\"", "\"never\"", "were the text"),
            ("[3], \"tokens\"", "[0], \"tokens\"", "the ids of"),
        ] {
            let (.., wrong) = same_ids((&own, &[]), &file(of, by), true);
            assert!(wrong.as_ref().is_some_and(|wrong| wrong.contains(says)), "{by}: {wrong:?}");
        }
    }
}
