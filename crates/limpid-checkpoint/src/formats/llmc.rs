//! llm.c's `.bin`. Its models are GPT-2s with F = 4 C, the tanh GELU, a tied head and 1e-5 in the norms; the header has
//! sizes only. The container is [`crate::llmc`].

use super::express::outline;
use super::format::{ModelFormat, Place, ReadModel};
use super::huggingface::{self, nearest};
use super::links::{Dialect, Link, canonical_names};
use super::rows;
use super::writing::Writing;
use crate::error::{CheckpointError, Result, refuse};
use crate::files::{LARGEST_JSON, at, replace};
use crate::llmc::{self, Header};
use crate::store::Dtype;
use limpid_base::files::{self, OutputFile};
use limpid_core::config::{Activation, Config, RotaryPairs};
use limpid_core::model::Model;
use limpid_tokenizer::{Tokenizer, TokenizerError};
use std::io::Write;
use std::path::Path;

/// See [`super::Format::Llmc`].
pub(super) struct LlmcFile;

impl ModelFormat for LlmcFile {
    fn file(&self) -> Option<(&'static str, &'static str)> {
        Some(("bin", "llm.c's .bin"))
    }

    fn detect(&self, place: &Place) -> bool {
        llmc::looks_like_one(&place.first) || place.ends_in("bin")
    }

    fn read(&self, place: &Place) -> Result<ReadModel> {
        let (header, store) = llmc::open_as(place.path, place.access)?;
        let config = config_of(&header);
        config.check().map_err(|source| CheckpointError::Config { path: place.path.into(), source })?;
        let names = canonical_names(&store, |name| Some(name.into()))?;
        let beside = Tokenizer::open(place.path.parent().unwrap_or(Path::new(".")))?;
        let gpt2 = || Tokenizer::named("gpt2").ok();
        let tokenizer = beside.or_else(gpt2).filter(|tokenizer| tokenizer.vocab_size() == config.vocab_size);
        Ok(ReadModel { tokenizer, ..ReadModel::bare(config, store, names, LlmcNames) })
    }

    /// The model, and its tokenizer beside it.
    fn write(&self, writing: &Writing) -> Result<()> {
        let (path, source) = (writing.path, writing.source);
        let (header, config) = express(source.config, writing.dtype.clone())?;
        let model = outline(path, &config)?;
        // under the name that llm.c looks for; it would be taken for another model's there, too
        let beside = path.with_file_name("gpt2_tokenizer.bin");
        let tokenizer = source.tokenizer.and_then(|tokenizer| tokenizer.to_llmc().ok());
        let there = beside.exists().then(|| at(&beside, files::read_small(&beside, LARGEST_JSON))).transpose()?;
        if let (Some(bytes), Some(there)) = (&tokenizer, &there)
            && bytes != there
        {
            return refuse(&beside, "it is of another model, and would be taken for this one's: give another folder");
        }
        let links = LlmcNames.links(&model);
        let rows = header.padded_vocab_size * header.d_model;
        llmc::write(path, &header, &|name| {
            let link = links.iter().find(|link| link.name == name).expect("llm.c's tensors all have links");
            let param = model.param(&link.param).expect("as above");
            let mut theirs = link.theirs(param, &writing.values(param, &config)?);
            if link.padded {
                theirs.resize(rows, 0.0);
            }
            Ok(theirs)
        })?;
        match tokenizer.filter(|_| there.is_none()) {
            Some(bytes) => replace(&beside, |path| OutputFile::create(path)?.write_all(&bytes)),
            None => Ok(()),
        }
    }

    fn storable(&self, dtype: Dtype) -> Dtype {
        if dtype == Dtype::Bf16 { dtype } else { Dtype::F32 }
    }

    fn pads_tables(&self) -> bool {
        true
    }

    fn has_chat_template(&self) -> bool {
        false
    }

    /// llm.c has files of byte pairs alone.
    fn tokenizer_error(&self, tokenizer: &Tokenizer) -> Option<TokenizerError> {
        tokenizer.to_llmc().err()
    }
}

/// Rows of the token table are rounded up to this.
const VOCAB_ALIGN: usize = 128;

/// The configuration of a header.
fn config_of(h: &Header) -> Config {
    Config {
        vocab_size: h.vocab_size,
        context_length: h.context_length,
        d_model: h.d_model,
        n_head: h.n_head,
        n_layer: h.n_layer,
        d_ff: 4 * h.d_model,
        ..Config::default()
    }
}

/// The header of a model, and the configuration with all that llm.c always has.
fn express(c: &Config, dtype: Dtype) -> Result<(Header, Config)> {
    let (_, config, mut not) = nearest(c, &huggingface::ALL[..1]); // GPT-2
    let activation = format!("activation {}", c.activation);
    not.unless(c.activation == Activation::GeluTanh, activation, "activation gelu-tanh");
    not.unless(c.d_ff == 4 * c.d_model, "d_ff other than 4 d_model", format_args!("d_ff {}", 4 * c.d_model));
    not.unless(c.tied_head, "tied_head false", "tied_head true");
    not.unless(c.norm_eps == 1e-5, format!("norm_eps {}", c.norm_eps), "norm_eps 1e-5");
    not.attention_scale(c);
    not.check("llm.c's GPT-2")?;
    let header = Header {
        context_length: c.context_length,
        vocab_size: c.vocab_size,
        padded_vocab_size: c.vocab_size.next_multiple_of(VOCAB_ALIGN),
        n_layer: c.n_layer,
        n_head: c.n_head,
        d_model: c.d_model,
        dtype,
    };
    Ok((header, config))
}

const TENSORS: &str = "embed.weight=wte pos_embed.weight=wpe ln1.weight=ln1w.{} ln1.bias=ln1b.{} \
                       attn.qkv.weight=qkvw.{} attn.qkv.bias=qkvb.{} attn.out.weight=attprojw.{} \
                       attn.out.bias=attprojb.{} ln2.weight=ln2w.{} ln2.bias=ln2b.{} mlp.in.weight=fcw.{} \
                       mlp.in.bias=fcb.{} mlp.out.weight=fcprojw.{} mlp.out.bias=fcprojb.{} ln_final.weight=lnfw \
                       ln_final.bias=lnfb";

/// llm.c's names.
struct LlmcNames;

impl Dialect for LlmcNames {
    fn links(&self, model: &Model) -> Vec<Link> {
        rows::links([TENSORS].iter(), RotaryPairs::Halves, model)
    }
}
